"""Reads the snapshots of this user's processes on several hosts: here at their sockets, elsewhere through ssh."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from jaxcomm.errors import JaxcommError
from jaxcomm.watch.folder import VERSION
from jaxcomm.watch.reader import Reader, Snapshot

_CONNECT_S: Final = 10  # time in which ssh must connect
_ANSWER_S: Final = 5.0  # time in which a connected host must answer; its own reader waits for at most one second
_AT_ONCE: Final = 64  # hosts that are asked at the same time
ANSWER: Final = b"jaxcomm.watch "  # prefix of each line with which a host answers


class HostsReader:
    """Asks all processes on this host and on other hosts."""

    def __init__(self, hosts: Sequence[str]) -> None:
        """Connects on the first reading.

        Args:
          hosts: the other hosts, as ssh knows them. This host may be among them.
        """
        self._here = Reader()
        self._others = [_Host(name) for name in dict.fromkeys(hosts)]

    def read(self) -> list[Snapshot]:
        """Returns one snapshot per process.

        A host that does not answer any more keeps its latest snapshots.

        Raises:
          JaxcommError: the folder of sockets is not safe, or a host has never answered.
        """
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            others = pool.map(_Host.read, self._others)
            here = self._here.read()
            found = [*(each for answer in others for each in answer), *here]
        return [
            *{each["socket"]: each for each in found}.values()
        ]  # if a process has two snapshots, keeps the one read here

    def close(self) -> None:
        """Ends the connections."""
        for each in self._others:
            each.close()


class _Host:
    """Another host, whose processes `python -m jaxcomm.watch` asks there."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ssh: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._latest: list[Snapshot] | None = None
        self._answered_s = 0.0

    def read(self) -> list[Snapshot]:
        try:
            self._latest = self._ask()
            self._answered_s = time.monotonic()
            return self._latest
        except JaxcommError:
            self.close()
            if self._latest is None:
                raise
        older_s = time.monotonic() - self._answered_s
        return [{**each, "answered_s": each["answered_s"] + older_s} for each in self._latest]

    def close(self) -> None:
        if self._ssh is None:
            return
        self._ssh.kill()
        self._ssh.wait()
        for pipe in (self._ssh.stdin, self._ssh.stdout, self._ssh.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):  # closing fails if ssh has not read the last request
                    pipe.close()
        self._ssh, self._received = None, b""

    def _ask(self) -> list[Snapshot]:
        limit_s = _ANSWER_S
        if self._ssh is None:
            self._ssh, limit_s = self._connected(), _CONNECT_S + _ANSWER_S
        assert self._ssh.stdin is not None
        with contextlib.suppress(OSError):  # if ssh has ended, `_line` raises the error
            self._ssh.stdin.write(b"\n")
            self._ssh.stdin.flush()
        end_s = time.monotonic() + limit_s
        # The host's shell may print other lines as it starts.
        while not (line := self._line(self._ssh, end_s)).startswith(ANSWER):
            pass
        answer = json.loads(line.removeprefix(ANSWER))
        if answer["version"] != VERSION:
            raise JaxcommError(f"{self._name} has another version of jaxcomm.\n  Cure: install the same version there.")
        snapshots: list[Snapshot] = answer["snapshots"]
        return snapshots

    def _connected(self) -> subprocess.Popen[bytes]:
        options = ["-T", "-oBatchMode=yes", f"-oConnectTimeout={_CONNECT_S}"]
        there = f"exec {shlex.quote(sys.executable)} -m jaxcomm.watch"
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        try:
            # ssh has a session of its own, so that Ctrl-C reaches only this process, which then ends ssh.
            return subprocess.Popen(["ssh", *options, "--", self._name, there], **pipes, start_new_session=True)
        except OSError as error:
            raise JaxcommError(f"ssh cannot be started: {error.strerror}.\n  Cure: install OpenSSH's client.") from None

    def _line(self, ssh: subprocess.Popen[bytes], end_s: float) -> bytes:
        assert ssh.stdout is not None
        while b"\n" not in self._received:
            if not select.select([ssh.stdout], [], [], max(0.0, end_s - time.monotonic()))[0]:
                raise JaxcommError(f"{self._name} has not answered in time.\n  Cure: try `ssh {self._name} true`.")
            part = os.read(ssh.stdout.fileno(), 2**20)
            if not part:
                raise self._ended(ssh)
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _ended(self, ssh: subprocess.Popen[bytes]) -> JaxcommError:
        assert ssh.stderr is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            ssh.wait(_ANSWER_S)
        # A connection that ssh shares with later calls keeps the pipe open, so a blocking read might never end.
        os.set_blocking(ssh.stderr.fileno(), False)
        printed = (ssh.stderr.read() or b"").decode(errors="replace").strip()
        cure = (
            f"let `ssh {self._name} true` work without a password"
            if ssh.returncode == 255  # ssh itself failed
            else f"install the same jaxcomm there, for {sys.executable}"
        )
        return JaxcommError(
            f"{self._name} cannot be asked: {printed or f'exit code {ssh.returncode}'}.\n  Cure: {cure}."
        )
