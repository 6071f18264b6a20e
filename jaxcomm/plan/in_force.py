"""What a plan that is followed has in force: ranges and their schedules, and the shares and threshold of rails."""

from __future__ import annotations

from typing import Any

from jaxcomm.plan.schema import Plan


def in_force(plan: Plan) -> dict[str, Any]:
    """The record of a plan that is followed.

    Returns:
      `plan`, the name in statistics; `ranks`; `roles`; `collectives`, the schedule of all-reduces from so many bytes
      on; `rails`, null or the bytes from which several share a call, and the planned shares from so many bytes on.
    """
    rails = plan.rails and {
        "threshold_bytes": plan.rails.threshold_bytes,
        "ranges": [{"min_bytes": low, "shares": dict(shares)} for low, shares in plan.rails.in_units()],
    }
    return {
        "plan": plan.hash[:8],
        "ranks": plan.ranks,
        "roles": dict(plan.roles),
        "collectives": [{"min_bytes": each.min_bytes, "schedule": each.schedule.kind} for each in plan.collectives],
        "rails": rails,
    }
