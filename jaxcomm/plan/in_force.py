"""The parts of a plan that a run follows: ranges and their schedules, and the shares and threshold of rails."""

from __future__ import annotations

from typing import Any

from jaxcomm.plan.schema import Plan
from jaxcomm.plan.timed import schedule_name
from jaxcomm.plan.values import Entry


def in_force(plan: Plan) -> dict[str, Any]:
    """The record of the plan that a run follows.

    Returns:
      `plan` is the plan's name in statistics. `ranks` and `roles` are the plan's. `collectives` has the schedules of
      all-reduces, each with the smallest size of its calls in bytes. A schedule's `name` is its name in profiles, or
      null. Its `selector` has the schedules to select from, or is null. `rails` has the smallest size of a call that
      several rails share, and the planned shares, each with the smallest size of its calls. For a plan without rails,
      `rails` is null.
    """
    rails = plan.rails and {
        "threshold_bytes": plan.rails.threshold_bytes,
        "ranges": [{"min_bytes": low, "shares": dict(shares)} for low, shares in plan.rails.planned().shares],
    }
    return {
        "plan": plan.hash[:8],
        "ranks": plan.ranks,
        "roles": dict(plan.roles),
        "collectives": [
            {
                "min_bytes": each.min_bytes,
                "schedule": each.schedule.kind,
                "name": None if (name := schedule_name(each.schedule)) is None else name.model_dump(),
                "selector": _selector(each),
            }
            for each in plan.collectives
        ],
        "rails": rails,
    }


def _selector(entry: Entry) -> dict[str, Any] | None:
    if entry.selector is None:
        return None
    return {
        "by_turns": entry.selector.by_turns,
        "lateness_s": entry.selector.lateness_s,
        "early": entry.selector.early.kind,
        "late": entry.selector.late.kind,
    }
