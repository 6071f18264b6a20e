"""The gain of a plan: by how much a step of the run has become shorter.

A call may end at different times on different ranks. A late end matters only if the next step waits for it. The period
of a step, from the beginning of one launch to the beginning of the next launch, includes such waits. The mean period
over several launches is the same in all processes, so one process can measure it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from jaxcomm import ffi
from jaxcomm.auto_plan.plan_switches import Periods
from jaxcomm.auto_plan.situation import CALLS

PERIODS: Final = 16  # a step is compared only if it has at least this many periods before and after the switch


class Steps(NamedTuple):
    """A step's mean duration before and after a switch, and whether it became shorter by more than chance explains."""

    before_s: float
    after_s: float
    are_shorter: bool

    def __str__(self) -> str:
        return f"a step took {1e3 * self.before_s:.3g} ms before, and takes {1e3 * self.after_s:.3g} now"


def compare(before: Periods, after: Periods) -> Steps | None:
    """Compares a step before and after a switch; None if no step has enough periods.

    Among the steps with enough periods, the step that takes most time is compared. In unchanged programs (see
    `jaxcomm.backend`), all equal all-reduces count as one step.

    Args:
      before: the periods of the steps before the switch.
      after: the periods of the steps since the switch.
    """
    common = [step for step in after if min(len(after[step]), len(before.get(step, []))) >= PERIODS]
    if not common:
        return None
    step = max(common, key=lambda each: (sum(after[each][-PERIODS:]), each))
    found = ffi.compare(after[step][-CALLS:], before[step][-CALLS:])
    return Steps(found.second_s, found.first_s, found.is_shorter)


def is_shorter(before: Periods, after: Periods) -> bool:
    """Whether steps have become shorter; False without enough periods."""
    steps = compare(before, after)
    return steps is not None and steps.are_shorter
