"""A process that has imported JAX, and forks processes that would import it, one at a time: importing takes them longer
than what most of them are for.

    server = ForkServer()
    server.start("tests.processes.results", ["plan.json"], environment, Path("output"))
    server.wait(10.0)     # its exit status, or minus the signal that ended it

Each process of a job is forked by a server of its own: strings hash unlike in each, as they do in users' processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


class ForkServer:
    """Started when it is made; ends with the process that made it."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self._process = 0
        self._status: int | None = None

    def start(self, module: str, words: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
        """Runs the module as `python -m` does; what it prints goes to the file."""
        assert self._server.stdin and self._server.stdout
        order = {"module": module, "words": [*words], "environment": {**environment}, "output": str(output)}
        self._server.stdin.write(f"{json.dumps(order)}\n")
        self._server.stdin.flush()
        self._process, self._status = int(self._server.stdout.readline()), None

    def wait(self, timeout_s: float) -> int | None:
        """The process's exit status, or minus the signal that ended it; None if it has not ended by then."""
        assert self._server.stdout
        if self._status is None and select.select([self._server.stdout], [], [], timeout_s)[0]:
            self._status = int(self._server.stdout.readline())
        return self._status

    def kill(self) -> int:
        """Ends the process, unless it has ended; returns its status."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
            self.wait(60.0)
        assert self._status is not None
        return self._status


def _serve() -> None:
    """Returns in the forked processes after their program, so that they end as any other does."""
    import jax.experimental.multihost_utils  # noqa: F401

    for line in sys.stdin:
        process = os.fork()
        if not process:
            _run(**json.loads(line))
            return
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


def _run(module: str, words: list[str], environment: dict[str, str], output: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for file, flags, copies in ((os.devnull, os.O_RDONLY, [0]), (output, os.O_WRONLY | os.O_CREAT, [1, 2])):
        opened = os.open(file, flags)
        for copy in copies:
            os.dup2(opened, copy)
        os.close(opened)
    sys.argv[1:] = words
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve()
