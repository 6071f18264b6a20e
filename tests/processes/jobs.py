"""Runs one Python module in several processes, with a deadline, and returns what each of them reported.

    job = jobs.run("tests.processes.results", processes=4, transport="shm")
    job[0].reports["psum"]      # what process 0 gave `report("psum", ...)`

In the module:

    jobs.report("psum", digests=[...])
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jaxcomm.distributed import launch

ROOT = Path(__file__).parents[2]
_MARK = "@report "


class Process(NamedTuple):
    """What came of one process: its exit status, or minus the signal that ended it, and what it printed."""

    status: int
    output: str
    reports: dict[str, Any]


def report(case: str, **found: Any) -> None:
    """Tells the test, from a process of the job, what came of a case."""
    print(f"{_MARK}{json.dumps({'case': case, **found})}", flush=True)


def run(
    module: str,
    *words: str,
    processes: int,
    devices: int = 1,
    transport: str = "shm",
    timeout_s: float = 300,
    **environment: str,
) -> list[Process]:
    """Runs the module in so many processes, and returns when all have ended.

    Args:
      module: its name, and its arguments.
      processes: of the job.
      devices: of each process.
      transport: JAXCOMM_TRANSPORT.
      timeout_s: what still runs then is killed.
      environment: further variables.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        files = [Path(folder, str(process)) for process in range(processes)]
        coordinator = launch.local_coordinator()
        children = []
        for process, file in enumerate(files):
            own = launch.variables(
                process,
                processes,
                devices=devices,
                coordinator=coordinator,
                transport=transport,
                environment=os.environ,
            )
            children.append(
                stack.enter_context(
                    _child(
                        [sys.executable, "-m", module, *words], launch.inherited(os.environ) | own | environment, file
                    )
                )
            )
        deadline = time.monotonic() + timeout_s
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
        for child in children:
            child.kill()
        return [_read(child.wait(), file.read_text()) for child, file in zip(children, files, strict=True)]


@contextlib.contextmanager
def _child(command: list[str], environment: dict[str, str], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (
        output.open("w") as file,
        subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=environment) as child,
    ):
        try:
            yield child
        finally:
            child.kill()


def _read(status: int, output: str) -> Process:
    lines = [line.removeprefix(_MARK) for line in output.splitlines() if line.startswith(_MARK)]
    reports = {found.pop("case"): found for found in map(json.loads, lines)}
    return Process(status, output, reports)
