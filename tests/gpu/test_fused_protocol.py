"""The fused executor's flag protocol, emulated: every schedule, in random orders of everything that its ranks do.

JAXCOMM_EMULATED_ORDERS=10000 makes it thorough; each number of ranks takes a processor.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jaxcomm.program.program import compile
from tests.schedules.schedule_cases import CASES

CC = Path(__file__).parents[2] / "cc"
SOURCES = ("gpu/executor/emulation/emulate.cc", "gpu/executor/emulation/emulator.cc", "gpu/executor/table.cc")
ORDERS = int(os.environ.get("JAXCOMM_EMULATED_ORDERS", "30"))

Emulate = Callable[[int, int, list[int]], str]


@pytest.fixture(scope="module")
def emulate(tmp_path_factory: pytest.TempPathFactory) -> Emulate:
    """Runs the emulation of every schedule: (orders of each, rows, numbers of ranks) -> what it prints."""
    folder = tmp_path_factory.mktemp("emulation")
    sources = [str(CC / source) for source in (*SOURCES, "program/program.cc")]
    command = ["c++", "-std=c++17", "-O2", f"-I{CC.parent}", *sources, "-o", str(folder / "emulate")]
    subprocess.run(command, check=True, timeout=300)

    def run(orders: int, rows: int, ranks: list[int]) -> str:
        def of(n: int) -> str:
            files = []
            for name, schedule in CASES.items():
                files.append(folder / f"{name}, {n} ranks")
                files[-1].write_bytes(compile(schedule(n)))
            command = [folder / "emulate", str(orders), str(rows), *files]
            result = subprocess.run(command, capture_output=True, text=True, timeout=7200)
            assert result.returncode == 0, [*result.stdout.splitlines()[-1:], result.stderr]
            assert result.stdout.count(" failures told\n") == len(files)
            return result.stdout

        with ThreadPoolExecutor(os.cpu_count()) as processors:
            return "".join(processors.map(of, ranks))

    return run


def test_every_schedule(emulate: Emulate) -> None:
    told = emulate(ORDERS, 1, list(range(2, 17)))
    assert ", 0 failures told" not in told  # in a third of the orders a rank misses the deadline


def test_rows_do_not_mix(emulate: Emulate) -> None:
    emulate(9, 2, [2, 5, 16])
