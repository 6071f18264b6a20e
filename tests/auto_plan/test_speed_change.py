"""Detects calls that have become slower or faster since the plan was made."""

from __future__ import annotations

import numpy as np
import pytest

from jaxcomm.auto_plan.situation import CALLS
from jaxcomm.auto_plan.speed_change import SpeedChange


def test_what_has_changed_for_long_is_found() -> None:
    speed = SpeedChange()
    usual = np.full(CALLS, 0.05)
    assert speed.change("a", usual) is None
    assert speed.change("a", 1.25 * usual) is None
    for times in (1.4, 0.7):
        assert speed.change("a", times * usual) == pytest.approx((0.05, 0.05 * times))
    assert speed.change("b", 1.4 * usual) is None  # another site, seen for the first time
    speed.forget()
    assert speed.change("a", 1.4 * usual) is None
    assert speed.change("a", usual) == pytest.approx((0.07, 0.05))


def test_a_few_slow_calls_and_a_change_that_has_just_begun_are_none() -> None:
    speed = SpeedChange()
    usual = np.full(CALLS, 0.05)
    assert speed.change("a", usual) is None
    few = usual.copy()
    few[::4] = 1.0
    assert speed.change("a", few) is None
    begun = usual.copy()
    begun[CALLS // 2 :] = 0.1
    assert speed.change("a", begun) is None
    assert speed.change("a", usual[1:]) is None
