"""Sends this process's statistics to `jaxcomm top` when asked."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import secrets
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Final

from jaxcomm import jax_compat, statistics
from jaxcomm.environment import host_name
from jaxcomm.errors import JaxcommError
from jaxcomm.watch.folder import VERSION, folder

_SEND_S: Final = 2.0  # time in which the receiver must read a snapshot
_STOP_S: Final = 2.0  # time that an ending process waits for a snapshot that is being made


@functools.cache
def start() -> None:
    """Starts a thread that answers `jaxcomm top`, at most once per process. The thread sleeps until a request arrives.

    If the socket cannot be made, the process goes on without it.
    """
    try:
        listener, path = _listen(folder())
    except (OSError, JaxcommError):
        return
    thread = threading.Thread(target=_answer, args=(listener,), name="jaxcomm top", daemon=True)
    process = os.getpid()

    def stop() -> None:
        """Ends the thread before the core's objects are destroyed, and removes the socket."""
        if os.getpid() != process:
            return  # a forked child
        with contextlib.suppress(OSError):
            path.unlink()
            listener.shutdown(socket.SHUT_RDWR)
        thread.join(_STOP_S)

    thread.start()
    atexit.register(stop)
    os.register_at_fork(after_in_child=listener.close)  # or a child would keep the socket open after this process ends


def snapshot() -> str:
    """The text that is sent: this process's place in its job, and its statistics, as one JSON object."""
    job, process, processes = jax_compat.place_in_job()
    about = {
        "version": VERSION,
        "job": job,
        "process": process,
        "processes": processes,
        "pid": os.getpid(),
        "host": host_name(),
        "program": sys.orig_argv[1:] or sys.orig_argv,
        "now_us": time.monotonic() * 1e6,
    }
    return f"{json.dumps(about)[:-1]}, {statistics.snapshot()[1:]}"


def _listen(inside: Path) -> tuple[socket.socket, Path]:
    name = secrets.token_hex(8)
    # `jaxcomm top` removes sockets without a listener, except those whose name begins with a dot.
    hidden, path = inside / f".{name}", inside / f"{os.getpid()}-{name}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(hidden))
        listener.listen()
        hidden.rename(path)
    except OSError:
        listener.close()
        raise
    return listener, path


def _answer(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # the process ends
        with connection, contextlib.suppress(OSError, JaxcommError):
            connection.settimeout(_SEND_S)
            connection.sendall(snapshot().encode())
