"""The testbeds on the machine, and their owners. Each testbed has a file, which the owner process keeps locked.

The kernel releases the lock when the owner ends for any reason. So if another process can lock a testbed's file, the
testbed's owner has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jaxcomm import files
from jaxcomm.errors import JaxcommError
from jaxcomm.testbed.layout import PREFIX

FOLDER: Final = Path("/run/jaxcomm/testbeds")
_ID: Final = re.compile(r"[0-9a-f]{8}")
_TIMEOUT_S: Final = 20


@contextlib.contextmanager
def owned() -> Iterator[str]:
    """Yields the id of a new testbed. At the end, removes the testbed's processes, namespaces and files."""
    files.make_folder(FOLDER)
    id = secrets.token_hex(4)
    temporary = FOLDER / f".{id}"
    handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        os.write(handle, f"{os.getpid()}\n".encode())
        os.rename(temporary, FOLDER / id)  # the file is visible only when it is locked
        try:
            yield id
        finally:
            _remove(id)
    finally:
        os.close(handle)


def clean() -> list[str]:
    """Removes the testbeds whose owners have ended.

    Returns:
      The ids of the removed testbeds.

    Raises:
      JaxcommError: a testbed cannot be removed.
    """
    removed = []
    for name, owner in _owners():
        if owner is None:
            _remove(name)
            removed.append(name)
    return removed


def in_use() -> dict[str, int]:
    """Returns the testbeds whose owners are running: the process id of each owner, by the testbed's id."""
    return {name: owner for name, owner in _owners() if owner is not None}


def _owners() -> Iterator[tuple[str, int | None]]:
    """Yields each testbed and the process id of its owner, or None if the owner has ended.

    While the caller handles a testbed whose owner has ended, the testbed's file stays locked.
    """
    for path in _states():
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            owner = None
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = int(file.read() or 0)
            yield path.name, owner


def hosts_folder(id: str) -> Path:
    """Returns the folder with the files of a testbed's hosts."""
    return FOLDER / f"{id}.hosts"


def _remove(id: str) -> None:
    """Kills all processes in the testbed's namespaces, then removes the namespaces and the testbed's files."""
    own = [name for name in _namespaces() if name == PREFIX + id or name.startswith(f"{PREFIX}{id}-")]
    deadline = time.monotonic() + _TIMEOUT_S
    while processes := [int(pid) for name in own for pid in _run("ip", "netns", "pids", name).split()]:
        if time.monotonic() > deadline:
            raise JaxcommError(
                f"testbed {id}: processes {processes} have not ended {_TIMEOUT_S} s after they were killed.\n"
                "  Cure: wait for them, then `jaxcomm testbed clean`."
            )
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)
    for name in own:
        _run("ip", "netns", "delete", name)
    shutil.rmtree(hosts_folder(id), ignore_errors=True)
    (FOLDER / id).unlink(missing_ok=True)


def _states() -> list[Path]:
    return sorted(path for path in FOLDER.glob("*") if _ID.fullmatch(path.name))


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines()]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode:
        raise JaxcommError(f"`{' '.join(command)}` failed: {done.stderr.strip()}.\n  Cure: `jaxcomm testbed clean`.")
    return done.stdout
