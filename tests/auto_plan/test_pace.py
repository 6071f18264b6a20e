"""Whether calls take as long as when their plan was made."""

from __future__ import annotations

import numpy as np
import pytest

from jaxcomm.auto_plan.pace import Pace
from jaxcomm.auto_plan.situation import CALLS


def test_what_has_changed_for_long_is_found() -> None:
    pace = Pace()
    usual = np.full(CALLS, 0.05)
    assert pace.change("a", usual) is None
    assert pace.change("a", 1.25 * usual) is None
    for times in (1.4, 0.7):
        assert pace.change("a", times * usual) == pytest.approx((0.05, 0.05 * times))
    assert pace.change("b", 1.4 * usual) is None  # another site, seen for the first time
    pace.forget()
    assert pace.change("a", 1.4 * usual) is None
    assert pace.change("a", usual) == pytest.approx((0.07, 0.05))


def test_a_few_slow_calls_and_a_change_that_has_just_begun_are_none() -> None:
    pace = Pace()
    usual = np.full(CALLS, 0.05)
    assert pace.change("a", usual) is None
    few = usual.copy()
    few[::4] = 1.0
    assert pace.change("a", few) is None
    begun = usual.copy()
    begun[CALLS // 2 :] = 0.1
    assert pace.change("a", begun) is None
    assert pace.change("a", usual[1:]) is None
