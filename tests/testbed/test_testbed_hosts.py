"""Hosts of a testbed differ as machines do, and run the first programs of the guides. Needs root."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxcomm import testbed
from jaxcomm.backend import jaxlib_variables
from jaxcomm.cli import main
from jaxcomm.testbed import Layout, Testbed
from tests.newcomer.newcomer import blocks

pytestmark = pytest.mark.root

DEADLINE_S = 60.0
TWO = Testbed.model_validate({"rails": [{"name": "eth0", "mbit": 200}], "hosts": [{"name": "a"}, {"name": "b"}]})
IDENTITY = """
import json, os, pathlib, socket
read = lambda path: pathlib.Path(path).read_text().strip()
print(json.dumps({
    "name": socket.gethostname(),
    "boot id": read("/proc/sys/kernel/random/boot_id"),
    "processes": os.readlink("/proc/self/ns/pid"),
    "is /proc its own": os.readlink("/proc/self") == str(os.getpid()),
    "shared memory": os.stat("/dev/shm").st_dev,
    "hosts": {name: socket.gethostbyname(name) for name in "ab"},
    "folder": os.getcwd(),
}))
"""


def run_on(layout: Layout, host: str, *command: str) -> subprocess.CompletedProcess[str]:
    own = next(each for each in testbed.environments(layout) if each["JAXCOMM_HOST"] == host)
    words = testbed.on_its_host(command)
    return subprocess.run(words, env=os.environ | own, capture_output=True, text=True, timeout=DEADLINE_S)


def test_hosts_differ_in_all_that_machines_do() -> None:
    with testbed.up(TWO) as layout:
        first, again, other = (
            json.loads(run_on(layout, host, sys.executable, "-I", "-c", IDENTITY).stdout) for host in "aab"
        )
    machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert first == again
    assert first["name"] == "a" and other["name"] == "b" and first["is /proc its own"]
    assert first["hosts"] == other["hosts"] == {"a": "10.77.0.1", "b": "10.77.0.2"}
    assert first["folder"] == other["folder"] == os.getcwd()
    assert len({first["boot id"], other["boot id"], machine}) == 3
    for differs in ("processes", "shared memory"):
        assert first[differs] != other[differs]


def test_commands_on_hosts_end_as_themselves() -> None:
    with testbed.up(TWO) as layout:
        assert run_on(layout, "a", "sh", "-c", "exit 7").returncode == 7
        assert run_on(layout, "a", "sh", "-c", "kill -KILL $$").returncode == -signal.SIGKILL
        assert run_on(layout, "a", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM
        stopped = "(sleep 0.1; kill -CONT $$) & kill -STOP $$; exit 3"
        assert run_on(layout, "a", "sh", "-c", stopped).returncode == 3
        missing = run_on(layout, "a", "no-such-command")
        assert missing.returncode == 125 and "no-such-command cannot run on its host" in missing.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "variables", "last"),
    [("unchanged_programs", jaxlib_variables.variables(), "distance "), ("processes", {}, "loss ")],
)
def test_first_programs_of_guides_run_between_hosts(
    page: str,
    variables: dict[str, str],
    last: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # the tests' XLA_FLAGS set eight devices
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    program, file = tmp_path / "train.py", tmp_path / "two.toml"
    program.write_text(blocks(f"docs/guides/{page}.md", "python")[0])
    file.write_text('[[rails]]\nname = "eth0"\nmbit = 200\n[[hosts]]\nname = "a"\n[[hosts]]\nname = "b"\n')
    assert main(["testbed", "run", str(file), "--time-limit", "120", "--", sys.executable, str(program)]) == 0
    assert f"[0 a] {last}" in capfd.readouterr().out
