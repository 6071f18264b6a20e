"""The sizes and schedules that are timed if the time does not suffice for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

from jaxcomm.measure import schedules
from jaxcomm.measure.schedules import (
    FEWEST,
    LEAST_SCHEDULES,
    MUCH_LONGER,
    Lateness,
    Offers,
    TurnTimes,
    schedules_of,
    time_schedules,
)
from jaxcomm.plan import Plan
from jaxcomm.profile import ScheduleName, TimedSchedules

KIB, MIB = 2**10, 2**20
SIZES = [4 * KIB, MIB, 16 * MIB]
NAMES = [ScheduleName(kind=kind) for kind in ("direct", "ring", "halving_doubling", "broadcast")]


class StubTurns:
    """Replaces the timing of schedules: each byte takes 1 ns. Records the sizes and numbers of turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes = list[int]()
        self.least = dict[int, int]()
        self.lateness: Lateness | None = None
        monkeypatch.setattr(schedules, "take_turns", self)
        monkeypatch.setattr(schedules._Budget, "of", staticmethod(self.budget))

    def budget(self, mesh: Any, plan: Any, nbytes: int, executor: str, lateness: Lateness | None) -> schedules._Budget:
        return schedules._Budget(0.0, 1e-9 * nbytes, nbytes, lateness)

    def __call__(
        self, mesh: Any, plans: Sequence[Plan], nbytes: int, lateness: Lateness | None, **options: Any
    ) -> list[TurnTimes]:
        self.sizes.append(nbytes)
        self.least[nbytes], self.lateness = options["turns"].least, lateness
        turns = [1e-9 * nbytes] * options["turns"].least
        return [TurnTimes(turns, turns if lateness else [], 0.1 if lateness else 0.0) for _ in plans]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> StubTurns:
    return StubTurns(monkeypatch)


def timed(seconds: float, lateness: Lateness | None = None, **options: Any) -> TimedSchedules:
    mesh = jax.sharding.Mesh(np.array(jax.devices("cpu")[:4]), ("data",))
    return time_schedules(mesh, ["memory"], lateness, SIZES, seconds=seconds, **options)


def of_size(nbytes: int) -> list[ScheduleName]:
    return NAMES if nbytes > MIB else NAMES[:3]


OFFERS = Offers(of_size)


def at(tables: TimedSchedules, nbytes: int) -> list[str]:
    return [each.kind for each in tables.schedules if any(sample.bytes == nbytes for sample in each.samples)]


def test_sizes_are_timed_from_the_largest_one_down(turns: StubTurns) -> None:
    found = timed(100.0, offers=OFFERS)
    assert turns.sizes == SIZES[::-1] and found.sizes == tuple(SIZES)
    assert [sample.bytes for sample in found.schedules[0].samples] == SIZES
    assert at(found, 16 * MIB) == [name.kind for name in NAMES] and at(found, MIB) == [name.kind for name in NAMES[:3]]
    assert found.left_out == [] and found.seconds_for_all == 0.0


def test_the_schedules_for_which_time_is_short_are_counted(turns: StubTurns) -> None:
    of_two = schedules._Budget(0.0, 0.016, 16 * MIB, None).seconds(16 * MIB, 2, FEWEST)
    found = timed(1.3 * of_two, offers=OFFERS)
    assert at(found, 16 * MIB) == ["direct", "ring"]
    [left_out] = [each for each in found.left_out if each.bytes == 16 * MIB]
    assert (left_out.timed, left_out.offered) == (2, 4)
    assert 0.9 * of_two < found.seconds_for_all < 4 * of_two


def test_two_schedules_are_timed_however_short_the_time(turns: StubTurns) -> None:
    found = timed(1e-9, offers=OFFERS, may_skip=False)
    assert all(at(found, nbytes) == ["direct", "ring"] for nbytes in SIZES)
    assert [(each.bytes, each.timed) for each in found.left_out] == [(nbytes, LEAST_SCHEDULES) for nbytes in SIZES]
    assert {*turns.least.values()} == {schedules.LEAST_TURNS}


def test_no_size_that_was_asked_for_is_left_out(turns: StubTurns) -> None:
    assert timed(1e-9, may_skip=False).sizes == tuple(SIZES)
    assert timed(1e-9).sizes == (4 * KIB,)


def test_sizes_are_left_out_where_two_schedules_take_much_longer(turns: StubTurns) -> None:
    budget = turns.budget(None, None, 16 * MIB, "memory", None)
    least_s = sum(map(budget.least_s, SIZES))
    assert timed(0.9 * least_s).sizes == tuple(SIZES)
    assert timed(0.9 * least_s / MUCH_LONGER).sizes == tuple(SIZES[:2])


def test_without_candidates_the_first_of_all_schedules_are_timed(turns: StubTurns) -> None:
    assert at(timed(1e-9, may_skip=False), 16 * MIB) == [name.kind for name in schedules_of(4)[:LEAST_SCHEDULES]]
    assert at(timed(100.0), 16 * MIB) == [name.kind for name in schedules_of(4)]


@pytest.mark.parametrize("lateness", [None, Lateness(1)])
def test_a_rank_is_made_late_only_if_one_is_late(turns: StubTurns, lateness: Lateness | None) -> None:
    found = timed(100.0, lateness, offers=OFFERS)
    assert turns.lateness is lateness
    assert all(bool(sample.late) == bool(lateness) for each in found.schedules for sample in each.samples)
    assert found.late == (lateness.rank if lateness else 3)


def test_a_rank_is_as_late_as_a_call_takes_within_its_bounds() -> None:
    lateness = Lateness(1, 0.01, 0.3)
    assert [lateness.seconds(call_s) for call_s in (0.001, 0.1, 0.5)] == pytest.approx([0.01, 0.11, 0.3])
    assert Lateness.of({2: 0.5, 1: 0.1}, 4) == Lateness(2, schedules.MOST_LATE_S)
    assert Lateness.of({}, 4) == Lateness(3, schedules.LEAST_LATE_S)
