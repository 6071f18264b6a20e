"""The schedules that a plan gives to call sites' all-reduces, if they differ from the default schedules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxcomm.auto_plan.latest_calls import Site
from jaxcomm.plan import Plan
from jaxcomm.schedules import Schedule
from jaxcomm.schedules.default_schedules import default_schedule


def planned_schedules(plan: Plan | None, sites: Iterable[Site], hosts: Sequence[int]) -> list[Schedule | None]:
    """The schedule of each call site; None if it is the default schedule.

    Args:
      plan: the plan; None for no plan.
      sites: the call sites.
      hosts: the host number of each rank.
    """
    found: list[Schedule | None] = []
    for _, _, nbytes in sites:
        schedule, usual = plan.schedule_for(nbytes) if plan else None, default_schedule(nbytes, hosts)
        is_usual = schedule is None or schedule.kind == ("direct" if usual == "flat" else usual)
        found.append(None if is_usual else schedule)
    return found
