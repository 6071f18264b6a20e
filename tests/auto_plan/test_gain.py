"""The gain of a plan, from the periods of steps."""

from __future__ import annotations

import numpy as np
import pytest

from jaxcomm.auto_plan.gain import PERIODS, compare


def periods(step_s: float, count: int = 32, noise_s: float = 1e-3) -> list[float]:
    return [*map(float, np.random.default_rng(round(1e6 * step_s)).normal(step_s, noise_s, count))]


def test_a_step_is_shorter_if_chance_does_not_explain_it() -> None:
    steps = compare({"7": periods(0.100)}, {"7": periods(0.094)})
    assert steps is not None
    assert steps.are_shorter
    assert str(steps) == f"a step took {1e3 * steps.before_s:.3g} ms before, and takes {1e3 * steps.after_s:.3g} now"
    assert steps.before_s == pytest.approx(0.1, rel=0.01)
    for after in (periods(0.0998), periods(0.094, noise_s=0.03), periods(0.11)):
        steps = compare({"7": periods(0.100)}, {"7": after})
        assert steps is not None
        assert not steps.are_shorter


def test_a_few_long_periods_change_nothing() -> None:
    steps = compare({"7": [*periods(0.1), 9.0, 9.0]}, {"7": [*periods(0.094), 30.0]})
    assert steps is not None
    assert steps.are_shorter
    assert steps.before_s == pytest.approx(0.1, rel=0.01)


def test_the_step_that_takes_most_time_counts() -> None:
    before = {"train": periods(0.1), "log": periods(0.01), "evaluate": periods(5.0)}
    after = {"train": periods(0.09), "log": periods(0.02), "evaluate": periods(9.0, PERIODS - 1)}
    steps = compare(before, after)
    assert steps is not None
    assert steps.before_s == pytest.approx(0.1, rel=0.01)


def test_a_call_that_a_step_makes_once_counts_more_than_one_it_makes_often() -> None:
    often = [0.002, 0.002, 0.096] * 21  # a step with three equal all-reduces: most periods are shorter than the step
    steps = compare({"often": often, "once": periods(0.1, PERIODS)}, {"often": often, "once": periods(0.09, PERIODS)})
    assert steps is not None
    assert steps.are_shorter
    assert steps.before_s == pytest.approx(0.1, rel=0.01)


def test_too_few_periods_tell_nothing() -> None:
    assert compare({"7": periods(0.1)}, {"7": periods(0.1, PERIODS - 1)}) is None
    assert compare({"7": periods(0.1)}, {"8": periods(0.1)}) is None
