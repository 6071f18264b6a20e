"""Processes on other hosts are asked through ssh, for which a script stands in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxcomm.errors import JaxcommError
from jaxcomm.watch import hosts, reader
from jaxcomm.watch.hosts import HostsReader
from jaxcomm.watch.reader import Snapshot

# Runs the command here, after the words that a host's shell may print. Notes its process.
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
echo $$ >> "$(dirname "$0")/started"
case $2 in
far) echo "ssh: connect to host far port 22: No route to host" >&2; exit 255;;
silent) exec sleep 60;;
other) echo 'jaxcomm.watch {"version": 0, "snapshots": []}'; exec sleep 60;;
esac
echo "Welcome to $2"; echo '[]'
exec sh -c "$3"
"""
ANSWERING = "import sys; from jaxcomm.watch import server; server.start(); print(flush=True); sys.stdin.read()"


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the started processes. This process looks for sockets in an empty folder."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "sockets").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(reader, "folder", lambda: tmp_path / "sockets")
    return tmp_path / "started"


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that answers."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", ANSWERING], **pipes) as started:
        assert started.stdout is not None and started.stdout.readline()
        yield started
        started.kill()


def of(pid: int, snapshots: list[Snapshot]) -> list[Snapshot]:
    return [each for each in snapshots if each["pid"] == pid]


def test_a_host_is_asked_through_one_connection_and_again_after_a_loss(
    ssh: Path, process: subprocess.Popen[bytes]
) -> None:
    asked = HostsReader(["node2", "node3", "node2"])
    try:
        for _ in range(2):
            [found] = of(process.pid, asked.read())  # once, although two hosts name it
            assert 0 <= found["answered_s"] < 3
        first = [int(pid) for pid in ssh.read_text().split()]
        assert len(first) == 2
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        [kept] = of(process.pid, asked.read())
        assert kept["now_us"] == found["now_us"] and kept["answered_s"] > found["answered_s"]
        [again] = of(process.pid, asked.read())
        assert again["now_us"] > kept["now_us"] and len(ssh.read_text().split()) == 4
    finally:
        asked.close()
    for pid in map(int, ssh.read_text().split()):
        assert not Path(f"/proc/{pid}").exists()


def test_an_unreachable_host_is_named(ssh: Path) -> None:
    asked = HostsReader(["far"])
    reached = "far cannot be asked: ssh: connect to host far port 22: No route to host.\n"
    with pytest.raises(JaxcommError, match=reached + "  Cure: let `ssh far true` work without a password."):
        asked.read()


def test_a_host_without_jaxcomm_is_named(ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts.sys, "executable", "/no/python")
    with pytest.raises(JaxcommError, match=r"node2 cannot be asked: (.|\n)*Cure: install the same jaxcomm there"):
        HostsReader(["node2"]).read()


def test_a_silent_host_is_named_in_time(ssh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_CONNECT_S", 0)
    monkeypatch.setattr(hosts, "_ANSWER_S", 0.1)
    with pytest.raises(JaxcommError, match="silent has not answered in time"):
        HostsReader(["silent"]).read()


def test_another_version_is_named(ssh: Path) -> None:
    with pytest.raises(JaxcommError, match="other has another version of jaxcomm"):
        HostsReader(["other"]).read()


def test_without_ssh_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JaxcommError, match="ssh cannot be started: No such file or directory"):
        HostsReader(["node2"]).read()
