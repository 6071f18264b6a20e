"""Runs one Python module in several processes, with a deadline, and returns what each of them reported.

    job = jobs.run("tests.processes.results", processes=4, transport="shm")
    job[0].reports["psum"]      # what process 0 gave `report("psum", ...)`

In the module:

    jobs.report("psum", digests=[...])
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxcomm.distributed.launch import commands as launch
from jaxcomm.environment import TRANSPORT
from tests.processes import fork_server

_MARK = "@report "


class Process(NamedTuple):
    """An ended process: its exit status, or minus the signal that ended it, and its output."""

    status: int
    output: str
    reports: dict[str, Any]


def report(case: str, **found: Any) -> None:
    """Reports the outcome of a case from a process of the job to the test."""
    print(f"{_MARK}{json.dumps({'case': case, **found})}", flush=True)


def run(
    module: str,
    *words: str,
    processes: int,
    devices: int = 1,
    transport: str = "shm",
    timeout_s: float = 300,
    forks: bool = True,
    **environment: str,
) -> list[Process]:
    """Runs the module in several processes, and returns when all have ended.

    Args:
      module: its name, and its arguments.
      processes: of the job.
      devices: of each process.
      transport: JAXCOMM_TRANSPORT.
      timeout_s: processes that still run then are killed.
      forks: spares the processes importing JAX, which is imported before `environment` holds.
      environment: further variables.
    """
    python = sys.executable
    if forks:
        python = fork_server.python("jax.experimental.multihost_utils", servers=processes)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, str(process)) for process in range(processes)]
        coordinator = launch.local_coordinator()
        started = []
        for process, file in enumerate(files):
            own = launch.variables(
                process,
                processes,
                devices=devices,
                coordinator=coordinator,
                environment=os.environ,
            )
            with file.open("w") as output:
                started.append(
                    subprocess.Popen(
                        [python, "-m", module, *words],
                        env=launch.inherited(os.environ) | own | {TRANSPORT: transport} | environment,
                        cwd=fork_server.ROOT,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        deadline = time.monotonic() + timeout_s
        try:
            for each in started:
                each.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass  # its status says so
        finally:
            for each in started:
                each.kill()
        return [_read(each.wait(), file.read_text()) for each, file in zip(started, files, strict=True)]


def run_in_turn(sums: str, sizes: Sequence[int], **options: Any) -> list[Process]:
    """Runs `tests.processes.reinitialize` in two processes, in one job after the other; both must end well.

    Args:
      sums: "jaxcomm" or "lax".
      sizes: the processes of each job.
      options: as for `run`.
    """
    generations = [f"{launch.local_coordinator()}/{size}" for size in sizes]
    found = run("tests.processes.reinitialize", sums, *generations, processes=2, timeout_s=120, **options)
    assert [each.status for each in found] == [0, 0], "\n".join(each.output for each in found)
    return found


def _read(status: int, output: str) -> Process:
    lines = [line.removeprefix(_MARK) for line in output.splitlines() if line.startswith(_MARK)]
    reports = {found.pop("case"): found for found in map(json.loads, lines)}
    return Process(status, output, reports)
