"""`jaxcomm testbed run`: its processes and their end. Nothing is left after any kind of end. Needs root."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jaxcomm import testbed
from jaxcomm.cli import main
from tests.cli import documents

pytestmark = pytest.mark.root

Capture = pytest.CaptureFixture[str]

DEADLINE_S = 60.0
JOB = """
import socket
import jax
import numpy as np
from jax.experimental import multihost_utils
jax.distributed.initialize()
total = multihost_utils.process_allgather(np.ones(1 << 18, np.float32))
print(jax.process_index(), jax.process_count(), jax.local_device_count(), socket.gethostname(), total.sum())
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "two.toml"
    path.write_text(
        '[[rails]]\nname = "eth0"\nmbit = 200\n[[hosts]]\nname = "a"\nprocesses = 2\n[[hosts]]\nname = "b"\n'
    )
    return str(path)


@contextmanager
def started(file: str, *command: str) -> Iterator[subprocess.Popen[str]]:
    """`jaxcomm testbed run` in its own session. It is killed at the end of the block, or after `DEADLINE_S`."""
    words = [sys.executable, "-m", "jaxcomm.cli", "testbed", "run", file, "--", *command]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as run:
        deadline = threading.Timer(DEADLINE_S, run.kill)
        deadline.start()
        try:
            yield run
        finally:
            deadline.cancel()
            run.kill()


SAY_GO_AND_SLEEP = ("sh", "-c", "echo go; sleep 1000")


def wait_for_go(run: subprocess.Popen[str]) -> tuple[str, list[int]]:
    """Waits for "go" from three processes. Returns the testbed's id, and this machine's ids of its processes."""
    assert run.stdout is not None
    id, processes = run.stdout.readline().split()[1].rstrip(":"), 0
    while processes < 3:
        line = run.stdout.readline()
        assert line, "it has ended"
        processes += line.endswith(" go\n")
    hosts = [f"jaxcomm-{id}-{host}" for host in "ab"]
    found = [subprocess.check_output(["ip", "netns", "pids", host], text=True).split() for host in hosts]
    assert len(found[0]) > len(found[1]) > 2  # processes of the command, and each host's first processes
    return id, [int(process) for each in found for process in each]


def left_of(id: str) -> list[str]:
    """Namespaces and files of a testbed."""
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    files = (str(path) for path in Path("/run/jaxcomm").rglob("*"))
    return [name for name in (*names, *files) if id in name]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def have_ended(processes: list[int]) -> bool:
    """Whether all processes end within `DEADLINE_S`. A killed process leaves its network namespace before it ends."""
    deadline = time.monotonic() + DEADLINE_S
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(alive, processes))


@pytest.mark.slow
def test_jax_distributed_finds_its_peers_without_arguments(
    file: str, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # the tests' XLA_FLAGS set eight devices
    assert main(["testbed", "run", file, "--json", "--time-limit", "120", "--", sys.executable, "-c", JOB]) == 0
    shown = capfd.readouterr()
    for process, host in enumerate("aab"):
        assert f"[{process} {host}] {process} 3 1 {host} {3 * 2**18}.0\n" in shown.err
    links = documents.document(shown.out)["links"]
    assert [(link["host"], link["rail"]) for link in links] == [("a", "eth0"), ("b", "eth0")]
    assert links[1]["received_bytes"] > 2**20  # Gloo's bytes use the rail, the coordinator's bytes do not
    assert links[1]["received_bytes"] < 8 * 2**20


def test_one_that_fails_ends_all(file: str, capfd: Capture) -> None:
    command = ("sh", "-c", 'echo here; [ "$JAXCOMM_HOST" = b ] && exit 7; sleep 1000')
    assert main(["testbed", "run", file, "--", *command]) == 7
    shown = capfd.readouterr()
    assert shown.err.endswith("error: process 2 on b ended with exit status 7; so the others were ended.\n")
    assert "[2 b] here\n" in shown.out and left_of(shown.out.split()[1].rstrip(":")) == []


def test_the_time_is_limited(file: str, capfd: Capture) -> None:
    assert main(["testbed", "run", file, "--time-limit", "0.5", "--", "sleep", "1000"]) == 1
    shown = capfd.readouterr()
    assert "error: the processes have not ended after 0.5 s, so they were terminated.\n  Cure: set a" in shown.err
    assert left_of(shown.out.split()[1].rstrip(":")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(file: str, number: signal.Signals) -> None:
    with started(file, *SAY_GO_AND_SLEEP) as run:
        id, processes = wait_for_go(run)
        assert left_of(id)
        run.send_signal(number)
        assert run.stdout is not None and run.stdout.read().endswith("error: interrupted\n")
        assert run.wait() == 130
    assert left_of(id) == [] and have_ended(processes)


def test_what_a_killed_one_leaves_is_cleaned_and_no_living_one_is_touched(file: str, capsys: Capture) -> None:
    with testbed.up(testbed.load(file)) as living:
        with started(file, *SAY_GO_AND_SLEEP) as run:
            id, processes = wait_for_go(run)
            os.kill(run.pid, signal.SIGKILL)
            run.wait()
            assert left_of(id)
            assert main(["testbed", "clean", "--json"]) == 0
        document = documents.document(capsys.readouterr().out)
        assert id in document["removed"] and document["in_use"][living.id] == os.getpid()
        assert left_of(id) == [] and have_ended(processes)
        assert set(living.namespaces) <= set(left_of(living.id))
        assert testbed.counters(living)
    assert left_of(living.id) == []


def test_a_command_that_fails_leaves_nothing(file: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = ("ip", "-n", "jaxcomm-nobody", "link", "set", "lo", "up")
    ids: list[str] = []

    def build(layout: testbed.Layout) -> list[tuple[str, ...]]:
        ids.append(layout.id)
        return [*list(testbed.build(layout))[:20], wrong]

    monkeypatch.setattr("jaxcomm.testbed.machine.build", build)
    assert main(["testbed", "run", file, "--", "true"]) == 1
    error = capsys.readouterr().err
    assert "error: `ip -n jaxcomm-nobody link set lo up` failed: " in error and "Cure: see `jaxcomm testbed" in error
    (id,) = ids
    assert left_of(id) == []
