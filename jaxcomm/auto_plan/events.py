"""The log lines of plan="auto", which are also events in `jaxcomm.stats()`."""

from __future__ import annotations

from typing import Any, Final

from jaxcomm import statistics
from jaxcomm.auto_plan.situation import Situation
from jaxcomm.log import say
from jaxcomm.records import Outcome

ENDED: Final = (
    "sums run without a plan from now on. jaxcomm.init(mesh, plan='auto') plans for the processes that are left."
)
NOTHING_BETTER: Final = "no plan is better than the default schedules, which sums follow."


def report(text: str, outcome: Outcome, situation: Situation | None = None, **about: Any) -> None:
    """Logs a line and records it as an event.

    Args:
      text: the line without its prefix.
      outcome: the outcome, in a word or two.
      situation: the late ranks, if they matter.
      about: the event's other fields.
    """
    late = {"late": [*situation.late], "late_by_s": situation.by_s} if situation else {}
    statistics.record_event(text, outcome, **late, **about)
    say(f"plan='auto': {text}")
