"""The parts of a plan that are in force: ranges and their schedules, and the shares and threshold of rails."""

from __future__ import annotations

from typing import Any

from jaxcomm.plan.schema import Plan
from jaxcomm.plan.values import Entry


def in_force(plan: Plan) -> dict[str, Any]:
    """The record of a plan that is followed.

    Returns:
      `plan`, the name in statistics; `ranks`; `roles`; `collectives`, the schedules of all-reduces by their
      least bytes, and `by_step`, null or the schedules that calls switch between; `rails`, null or the least bytes of
      a call that several rails share, and the planned shares by least bytes.
    """
    rails = plan.rails and {
        "threshold_bytes": plan.rails.threshold_bytes,
        "ranges": [{"min_bytes": low, "shares": dict(shares)} for low, shares in plan.rails.in_units()],
    }
    return {
        "plan": plan.hash[:8],
        "ranks": plan.ranks,
        "roles": dict(plan.roles),
        "collectives": [
            {"min_bytes": each.min_bytes, "schedule": each.schedule.kind, "by_step": _by_step(each)}
            for each in plan.collectives
        ],
        "rails": rails,
    }


def _by_step(entry: Entry) -> dict[str, Any] | None:
    if entry.by_step is None:
        return None
    return {
        "below_s": entry.by_step.below_s,
        "below": entry.by_step.below.kind,
        "above": entry.by_step.above.kind,
    }
