"""The schedules of a plan for hosts that lack a rail, in words."""

from __future__ import annotations

from collections.abc import Iterator

from jaxcomm.log import printable
from jaxcomm.plan.schema import Plan
from jaxcomm.report.tables import bytes_text, seconds_text


def fence_lines(plan: Plan) -> Iterator[str]:
    """One sentence on all hosts and rails."""
    if not plan.fences:
        return
    rails = printable(", ".join(dict.fromkeys(fence.rail or "the first rail" for fence in plan.fences)))
    hosts = len({fence.rank for fence in plan.fences})
    least = min(fence.ranges[0].min_bytes for fence in plan.fences)
    worst = max((fence.ranges[-1] for fence in plan.fences), key=lambda each: each.otherwise)
    yield (
        f"If one of {hosts} hosts loses a rail ({rails}) in the run, calls of {bytes_text(least)} and more run a "
        f"prepared schedule, in which the other hosts take its share of the chunks: "
        f"{bytes_text(worst.reference_bytes)} take {seconds_text(worst.seconds)} in place of "
        f"{seconds_text(worst.otherwise)}."
    )
