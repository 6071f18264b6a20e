"""The late ranks of a run, as far as they matter."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from jaxcomm.auto_plan.planning import profile_of
from jaxcomm.auto_plan.situation import CALLS, Situation, steady
from jaxcomm.profile import Profile

LINKS = {"link": {"alpha_s": 1e-5, "beta_s_per_byte": 1e-9, "source": "a test"}, "hosts": ["a", "b", "c", "d"]}


def arrivals(late: int | None, by_s: float, calls: int = CALLS) -> NDArray[np.float64]:
    rows = np.random.default_rng(0).uniform(0, 1e-3, (calls, 4))
    if late is not None:
        rows[:, late] += by_s
    return rows - rows.min(axis=1, keepdims=True)


def profile(rows: NDArray[np.float64], after_s: float = 0.05) -> Profile:
    return profile_of(LINKS, rows, 1 << 20, after_s)


def test_a_late_rank_is_found_and_by_how_much() -> None:
    rows = arrivals(2, 0.03)
    found = steady(profile(rows), rows)
    assert found is not None
    assert found.late == (2,)
    assert found.by_s == pytest.approx(0.03, rel=0.05)
    assert str(found) == f"rank 2 is late, by {1e3 * found.by_s:.3g} ms"


def test_nobody_is_late_where_it_could_not_gain() -> None:
    rows = arrivals(2, 0.03)
    assert steady(profile(rows, after_s=10.0), rows) == Situation((), 0.0)
    rows = arrivals(None, 0.0)
    assert steady(profile(rows), rows) == Situation((), 0.0)


def test_a_situation_that_changes_or_is_short_is_none() -> None:
    few = arrivals(2, 0.03, CALLS - 1)
    assert steady(profile(few), few) is None
    half = CALLS // 2
    moved = np.concatenate([arrivals(2, 0.03, half), arrivals(1, 0.03, half)])
    assert steady(profile(moved), moved) is None
    moved = np.concatenate([arrivals(2, 0.03, half), arrivals(1, 0.03, CALLS)])
    found = steady(profile(moved), moved)
    assert found is not None
    assert found.late == (1,)


def test_alike_is_the_same_rank_about_as_late() -> None:
    assert Situation((2,), 0.03).is_like(Situation((2,), 0.04))
    assert not Situation((2,), 0.03).is_like(Situation((2,), 0.05))
    assert not Situation((2,), 0.03).is_like(Situation((1,), 0.03))
    assert not Situation((2,), 0.03).is_like(Situation((), 0.0))
    assert Situation((), 0.0).is_like(Situation((), 0.0))
