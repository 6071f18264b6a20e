"""The parts of a plan that are in force: ranges and their schedules, and the shares and threshold of rails."""

from __future__ import annotations

from typing import Any

from jaxcomm.plan.schema import Plan
from jaxcomm.plan.values import Entry


def in_force(plan: Plan) -> dict[str, Any]:
    """The record of a plan that is followed.

    Returns:
      `plan`, the name in statistics; `ranks`; `roles`; `collectives`, the schedules of all-reduces by their
      least bytes, and `selector`, null or the schedules that calls select from; `rails`, null or the least bytes of
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
            {"min_bytes": each.min_bytes, "schedule": each.schedule.kind, "selector": _selector(each)}
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
