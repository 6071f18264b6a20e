"""Starts a testbed's processes, prints what they say, and ends them all when one fails or the time is over."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import IO, Final

from jaxcomm.errors import JaxcommError
from jaxcomm.testbed.processes import Process

_POLL_S: Final = 0.02
_GRACE_S: Final = 5.0  # between SIGTERM and SIGKILL


def supervise(processes: Sequence[Process], out: IO[str], time_limit_s: float) -> None:
    """Runs the processes to their end; each line of theirs goes to `out`, behind their number and host.

    Raises:
      JaxcommError: one has failed, or they have not ended in time; the others have then been ended.
    """
    started, readers = list[subprocess.Popen[str]](), list[threading.Thread]()
    deadline = time.monotonic() + time_limit_s
    try:
        for process in processes:
            started.append(
                subprocess.Popen(
                    process.command,
                    env={**os.environ, **process.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    start_new_session=True,  # Ctrl-C reaches them as our SIGTERM
                )
            )
            readers.append(threading.Thread(target=_print, args=(process, started[-1], out), daemon=True))
            readers[-1].start()
        while any(each.poll() is None for each in started):
            _check(processes, started)
            if time.monotonic() > deadline:
                raise JaxcommError(
                    f"the processes have not ended after {time_limit_s:g} s, so they were ended.\n"
                    "  Cure: a longer --time-limit, or a look at what they wait for."
                )
            time.sleep(_POLL_S)
        _check(processes, started)
    finally:
        _end(started)
        for reader in readers:
            reader.join(timeout=_GRACE_S)


def _check(processes: Sequence[Process], started: Sequence[subprocess.Popen[str]]) -> None:
    for process, each in zip(processes, started, strict=True):
        if each.poll():
            ended = f"exit code {each.returncode}" if each.returncode > 0 else f"signal {-each.returncode}"
            raise JaxcommError(f"process {process.id} on {process.host} ended with {ended}; so the others were ended.")


def _end(started: Sequence[subprocess.Popen[str]]) -> None:
    """Ends the processes with those that they have started themselves."""
    _signal(started, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    for each in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            each.wait(max(0.0, deadline - time.monotonic()))
    _signal(started, signal.SIGKILL)
    for each in started:
        each.wait()


def _signal(started: Sequence[subprocess.Popen[str]], number: signal.Signals) -> None:
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.pid, number)


def _print(process: Process, started: subprocess.Popen[str], out: IO[str]) -> None:
    assert started.stdout is not None
    for line in started.stdout:
        print(f"[{process.id} {process.host}] {line.rstrip()}", file=out, flush=True)
