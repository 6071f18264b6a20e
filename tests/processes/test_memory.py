"""A process's resources stay constant over many steps of megabytes."""

from __future__ import annotations

import pytest

from tests.processes import jobs

pytestmark = pytest.mark.slow

STEPS = 600
GROWTH = 64 << 20  # bytes: some dozens of XLA's buffers; without cc/ffi/operator_new.cc a process grows by 400 and more


def test_resident_memory_does_not_grow() -> None:
    for process in jobs.run("tests.processes.memory", str(STEPS), processes=4, transport="tcp"):
        assert process.status == 0, process.output
        held = process.reports["memory"]["rss"][4:]  # by then every thread has a heap of its own
        assert held[-1] - held[0] < GROWTH, held
