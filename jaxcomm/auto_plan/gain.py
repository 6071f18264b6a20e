"""What a plan has gained: by how much a step of the run has become shorter.

Calls may end at other times on other ranks, and a rank that ends early or late matters only as far as the next step
waits for it. The time from the beginning of one launch of a step to that of the next has all of that in it; over some
launches it is the same in all processes, so that one of them can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from jaxcomm.auto_plan.plan_switches import Periods
from jaxcomm.auto_plan.situation import CALLS

PERIODS: Final = 16  # of a step, from which on they tell
_LEAST: Final = 0.005  # of a step that a plan has to gain
_ERRORS: Final = 2.0  # standard errors that it has to gain


class Steps(NamedTuple):
    """What a step took before and after a switch.

    Attributes:
      before_s: by the median.
      after_s: likewise.
      error_s: the standard error of their difference.
    """

    before_s: float
    after_s: float
    error_s: float

    @property
    def are_shorter(self) -> bool:
        """By more than chance explains."""
        return self.before_s - self.after_s > max(_LEAST * self.before_s, _ERRORS * self.error_s)

    def __str__(self) -> str:
        return f"a step took {1e3 * self.before_s:.3g} ms before, and takes {1e3 * self.after_s:.3g} now"


def compare(before: Periods, after: Periods) -> Steps | None:
    """The step that takes most time among those of which there are enough periods; None: there is none.

    In unchanged programs all-reduces that are alike stand for a step: of those that a step makes once these periods are
    the longest.

    Args:
      before: the periods of steps' launches before the switch.
      after: since then.
    """
    common = [step for step in after if min(len(after[step]), len(before.get(step, []))) >= PERIODS]
    if not common:
        return None
    step = max(common, key=lambda each: (sum(after[each][-PERIODS:]), each))
    return of(before[step][-CALLS:], after[step][-CALLS:])


def of(before: Sequence[float], after: Sequence[float]) -> Steps:
    """The medians of seconds before and after, and the error of their difference."""
    one, other = np.array(before), np.array(after)
    error = float(np.hypot(_error(one), _error(other)))
    return Steps(float(np.median(one)), float(np.median(other)), error)


def is_shorter(before: Periods, after: Periods) -> bool:
    """Whether steps have become shorter; not where that cannot be told."""
    steps = compare(before, after)
    return steps is not None and steps.are_shorter


def _error(seconds: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """The standard error of the median, from the median deviation, which a few long periods do not change."""
    deviation = 1.4826 * float(np.median(np.abs(seconds - np.median(seconds))))
    return 1.2533 * deviation / float(np.sqrt(len(seconds)))
