"""The schedules that a plan prepares for the loss of a host's rail, in words."""

from __future__ import annotations

from collections.abc import Iterator

from jaxcomm.log import printable
from jaxcomm.plan.schema import Plan
from jaxcomm.report.plan.rails import rail_name
from jaxcomm.report.tables import bytes_text, seconds_text


def lost_rail_lines(plan: Plan) -> Iterator[str]:
    """Yields one sentence on all prepared schedules. Yields nothing if the plan has none."""
    if not plan.lost_rails:
        return
    rails = printable(", ".join(dict.fromkeys(rail_name(lost.rail) for lost in plan.lost_rails)))
    hosts = len({lost.rank for lost in plan.lost_rails})
    least = min(lost.ranges[0].min_bytes for lost in plan.lost_rails)
    worst = max((lost.ranges[-1] for lost in plan.lost_rails), key=lambda each: each.otherwise)
    yield (
        f"If one of {hosts} hosts loses a rail ({rails}) in the run, calls of {bytes_text(least)} and more run a "
        f"prepared schedule, in which the other hosts take its share of the chunks: "
        f"{bytes_text(worst.reference_bytes)} take {seconds_text(worst.seconds)} in place of "
        f"{seconds_text(worst.otherwise)}."
    )
