"""The CPU time that other programs take during a measurement."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from jaxcomm.measure import load
from jaxcomm.measure.load import OtherPrograms
from jaxcomm.profile import Profile
from jaxcomm.report.profile_summary import summary
from tests.planner.test_timed_schedules import GAINS, profile, timed

TICKS = os.sysconf("SC_CLK_TCK")


class Machine:
    """Replaces the kernel's CPU counters (in seconds, one processor) and this process's CPU time."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file, self.own_s = folder / "stat", 0.0
        monkeypatch.setattr(load, "_STAT", self.file)
        monkeypatch.setattr(load, "_own_s", lambda: self.own_s)

    def set(self, programs_s: float, kernel_s: float, idle_s: float, own_s: float) -> None:
        self.own_s = own_s
        words = [int(TICKS * each) for each in (programs_s, 0, kernel_s, idle_s, 0, 0, 0, 0, 0, 0)]
        self.file.write_text(f"cpu  {' '.join(map(str, words))}\ncpu0 1 2\nbtime 1700000000\nprocesses 9\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("programs_s", "kernel_s", "idle_s", "own_s", "share"),
    [(6.0, 1.0, 3.0, 4.0, 0.2), (4.0, 5.0, 1.0, 4.0, 0.0), (3.9, 0.0, 6.1, 4.0, 0.0), (0.0, 0.0, 0.0, 0.0, 0.0)],
    ids=["others run", "only the kernel", "less than its own", "at once"],
)
def test_time_in_programs_less_its_own_is_that_of_others(
    machine: Machine, programs_s: float, kernel_s: float, idle_s: float, own_s: float, share: float
) -> None:
    machine.set(100.0, 50.0, 1000.0, 7.0)
    counted = OtherPrograms()
    machine.set(100.0 + programs_s, 50.0 + kernel_s, 1000.0 + idle_s, 7.0 + own_s)
    assert counted.share() == pytest.approx(share)


def test_the_machine_where_others_took_most_counts(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[1.0, 6 * TICKS, 10 * TICKS, 2.0], [1.0, 6 * TICKS, 10 * TICKS, 3.0], [2.0, 9 * TICKS, 10 * TICKS, 2.0]]
    monkeypatch.setattr(load, "gathered", lambda *values: np.array(rows))
    machine.set(0.0, 0.0, 0.0, 0.0)
    assert OtherPrograms().share() == pytest.approx(0.7)  # machine 2: (9 - 2) / 10; machine 1: (6 - 2 - 3) / 10


def test_this_machines_own_counters_are_read() -> None:
    assert 0 <= OtherPrograms().share() <= 1


def known(others: float) -> Profile:
    return profile(timed(GAINS).model_copy(update={"others": others}))


def test_the_summary_names_a_use_of_a_tenth_or_more() -> None:
    assert "took 25% of the processors while schedules were timed" in summary(known(0.25))
    assert "other programs" not in summary(known(0.09))
