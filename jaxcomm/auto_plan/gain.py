"""The gain of a plan: by how much a step of the run has become shorter.

A call may end at different times on different ranks, and a late end matters only if the next step waits for it. The
period of a step, from the beginning of one launch to that of the next, includes that. The mean over some launches is
the same in all processes, so one process can measure it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from jaxcomm.auto_plan.plan_switches import Periods
from jaxcomm.auto_plan.situation import CALLS

PERIODS: Final = 16  # of a step, that a comparison needs
_LEAST: Final = 0.005  # of a step that a plan must save
_ERRORS: Final = 2.0  # standard errors that it must save


class Steps(NamedTuple):
    """The duration of a step before and after a switch.

    Attributes:
      before_s: median seconds.
      after_s: median seconds.
      error_s: standard error of their difference.
    """

    before_s: float
    after_s: float
    error_s: float

    @property
    def are_shorter(self) -> bool:
        """Whether the plan saves more than chance explains."""
        return self.before_s - self.after_s > max(_LEAST * self.before_s, _ERRORS * self.error_s)

    def __str__(self) -> str:
        return f"a step took {1e3 * self.before_s:.3g} ms before, and takes {1e3 * self.after_s:.3g} now"


def compare(before: Periods, after: Periods) -> Steps | None:
    """Compares the step that takes most time among those with enough periods; None: no step has enough.

    In unchanged programs equal all-reduces stand for a step.

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
    """Whether steps have become shorter; False without enough periods."""
    steps = compare(before, after)
    return steps is not None and steps.are_shorter


def _error(seconds: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """The standard error of the median, from the median deviation, which is robust against a few long periods."""
    deviation = 1.4826 * float(np.median(np.abs(seconds - np.median(seconds))))
    return 1.2533 * deviation / float(np.sqrt(len(seconds)))
