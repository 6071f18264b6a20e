"""Reads the snapshots of this user's processes on this host."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from jaxcomm.watch.folder import VERSION, folder

_ANSWER_S: Final = 1.0  # time in which a process must answer
_AT_ONCE: Final = 16  # processes that are asked at the same time
_MOST_BYTES: Final = 2**28  # maximum size of a snapshot

Snapshot = dict[str, Any]


class Reader:
    """Asks all processes, and remembers the latest snapshot of each process that does not answer in time."""

    def __init__(self) -> None:
        self._latest: dict[Path, Snapshot] = {}

    def read(self) -> list[Snapshot]:
        """Returns one snapshot per process.

        `socket` identifies the process, because PIDs are not unique if processes are in several PID namespaces;
        `answered_s` is the number of seconds since the snapshot was made.

        A process that is stopped, or whose Python code is busy, keeps its latest snapshot. The sockets of processes
        that were killed are removed.

        Raises:
          JaxcommError: the folder of sockets is not safe.
        """
        paths = [path for path in folder().iterdir() if not path.name.startswith(".")]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = dict(zip(paths, pool.map(self._ask, paths), strict=True))
        self._latest = {path: each for path, each in found.items() if each is not None and each["version"] == VERSION}
        now_us = time.monotonic() * 1e6
        return [{**each, "answered_s": (now_us - each["now_us"]) / 1e6} for each in self._latest.values()]

    def _ask(self, path: Path) -> Snapshot | None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
            asked.settimeout(_ANSWER_S)
            try:
                asked.connect(str(path))
                parts, length = [], 0
                while (part := asked.recv(2**16)) and length < _MOST_BYTES:
                    parts.append(part)
                    length += len(part)
                return {**json.loads(b"".join(parts)), "socket": path.name}
            except (ConnectionRefusedError, FileNotFoundError):  # the process has ended
                with contextlib.suppress(OSError):
                    path.unlink()
                return None
            except (OSError, ValueError):  # a timeout, or a text that was cut short
                return self._latest.get(path)
