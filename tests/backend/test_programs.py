"""Results of unchanged programs whose collectives jaxcomm carries."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from jaxcomm.backend import jaxlib_variables
from tests.backend.programs import CASES
from tests.processes import jobs

# Processes, devices of each, transport.
JOBS = {
    "4 processes over shm": (4, 1, "shm"),
    "2 processes of 2 devices over shm": (2, 2, "shm"),
    "4 processes over tcp": (4, 1, "tcp"),
    "2 processes over udp": (2, 1, "udp"),
}


@functools.cache
def ran(job: str) -> list[jobs.Process]:
    processes, devices, transport = JOBS[job]
    return jobs.run(
        "tests.backend.programs",
        processes=processes,
        devices=devices,
        transport=transport,
        forks=False,
        PJRT_NPROC=str(jaxlib_variables.THREADS),
        **jaxlib_variables.variables(),
    )


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_numpy(job: str, case: str) -> None:
    for process in ran(job):
        assert case in process.reports, process.output[-3000:]
        assert process.reports[case]["error"] == ""


@pytest.mark.slow
def test_the_core_carried_them(tmp_path: Path) -> None:
    program = tmp_path / "counts.py"
    program.write_text(
        "import jax, numpy as np\n"
        "jax.distributed.initialize()\n"
        "from jax.experimental import multihost_utils\n"
        "for _ in range(3): multihost_utils.process_allgather(np.ones(5))\n"
        "import jaxcomm\n"
        "print('ROWS', sorted((site['name'], site['ranks']) for site in jaxcomm.stats()))\n"
    )
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "jaxcomm.cli", "launch", "-n", "2", "--every-collective", str(program)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("('all-gather', 2)") + done.stdout.count("('all-reduce', 2)") >= 2, done.stdout
