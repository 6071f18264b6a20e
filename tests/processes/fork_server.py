"""A program that stands for Python and runs what it is given in a fork of a process that has imported what takes long:
importing takes most programs longer than what they are for.

    program = fork_server.python("jax")
    subprocess.run([program, "-m", "jaxcomm.cli", "plan", "profile.json"], env=environment)

The fork has its streams, folder and environment, ends as it does, and is killed with it; what it starts by
`sys.executable` is forked, too. With several servers each process of a job is forked by another: strings hash unlike in
each, as they do in users' processes.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from tests.processes import fork_client

ROOT = Path(__file__).parents[2]
_LONGEST: Final = 1 << 18  # bytes of an order


def python(*imports: str, servers: int = 1) -> str:
    """The program's path.

    Args:
      imports: modules that the servers import, once, before the first program runs.
      servers: the number of processes of a job that run at once; more take turns.
    """
    folder = _folder(imports)
    for number in range(servers):
        _start(folder / str(number), imports)
    return str(folder / "python")


@cache
def _folder(imports: tuple[str, ...]) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="forks-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    words = shlex.join([sys.executable, "-I", "-S", fork_client.__file__, str(folder)])
    (folder / "python").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    (folder / "python").chmod(0o755)
    return folder


@cache
def _start(address: Path, imports: tuple[str, ...]) -> None:
    """Starts a server that ends with this process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(address))
        listener.listen(64)
        listener.set_inheritable(True)
        server = subprocess.Popen(
            [sys.executable, "-m", __name__, str(listener.fileno()), *imports],
            stdin=subprocess.PIPE,
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if not name.startswith("JAX_")},
            pass_fds=[listener.fileno()],
        )
    atexit.register(server.communicate)  # the end of its input is its own, also where this process is killed


def _serve(descriptor: str, *imports: str) -> None:
    """Returns in the forked processes after their program, so that they end as any other does."""
    for module in imports:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what all forks share stays shared
    with socket.socket(fileno=int(descriptor)) as listener:
        order, streams = _fork(listener)
    if order:
        _run(streams, **json.loads(order))


def _fork(listener: socket.socket) -> tuple[bytes, list[int]]:
    """In each forked process what it is to run, and its streams; nothing when the server is to end."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
    running: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor of a process
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                client = listener.accept()[0]
                order, streams, _, _ = socket.recv_fds(client, _LONGEST, 3)
                if not order:
                    continue
                process = os.fork()
                if not process:
                    selector.close()
                    for descriptor, (_, other) in running.items():
                        os.close(descriptor)
                        other.close()
                    return order, streams
                for stream in streams:
                    os.close(stream)
                descriptor = os.pidfd_open(process)
                running[descriptor] = process, client
                selector.register(descriptor, selectors.EVENT_READ)
                selector.register(client, selectors.EVENT_READ, descriptor)
            elif key.fileobj == sys.stdin.fileno():
                for process, _ in running.values():
                    os.kill(process, signal.SIGKILL)
                return b"", []
            elif key.fileobj in running:
                process, client = running.pop(key.fd)
                status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                with contextlib.suppress(OSError, KeyError):
                    selector.unregister(client)
                    client.send(str(status).encode())
                selector.unregister(key.fd)
                os.close(key.fd)
                client.close()
            elif key.data in running:  # the client is gone
                os.kill(running[key.data][0], signal.SIGKILL)
                selector.unregister(key.fileobj)


def _run(streams: list[int], program: str, words: list[str], environment: dict[str, str], folder: str) -> None:
    for copy, stream in enumerate(streams):
        os.dup2(stream, copy)
        os.close(stream)
    unbuffered = "PYTHONUNBUFFERED" in environment
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = _writer(1, "strict", unbuffered)
    sys.stderr = sys.__stderr__ = _writer(2, "backslashreplace", unbuffered)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    if "jax" in sys.modules:
        _configure_jax(environment)
    sys.executable = program
    is_module = words[0] == "-m"
    sys.argv = words[is_module:]
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [folder if is_module else str(Path(words[0]).resolve().parent), *filter(None, paths)]
    if is_module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


def _writer(stream: int, errors: str, unbuffered: bool) -> io.TextIOWrapper:
    """As Python itself makes it."""
    file = open(stream, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(file, errors=errors, write_through=unbuffered, line_buffering=stream == 2)


def _configure_jax(environment: dict[str, str]) -> None:
    """As JAX itself would have done when it was imported."""
    import jax

    usual = jax.config.values
    for name, value in environment.items():
        option = name.lower()
        if name.startswith("JAX_") and option in usual:
            kind = str if usual[option] is None else type(usual[option])
            jax.config.update(option, value.lower() in ("1", "true", "on", "yes") if kind is bool else kind(value))


if __name__ == "__main__":
    _serve(*sys.argv[1:])
