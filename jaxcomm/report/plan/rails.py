"""A plan's rails in words and tables: their shares, the reasons for these shares, and the times with other shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxcomm.plan.rails import Rails, Share
from jaxcomm.report.tables import bytes_text, seconds_text, table
from jaxcomm.report.words import range_text, saved_text

_REASONS = {
    "only_rail": "there is no other rail",
    "cold": "cold: no split pays yet",
    "split": "split",
    "diverges": "rails diverge",
    "no_gain": "no split pays",
}


def rails_headline(rails: Rails) -> str:
    """One sentence: the rails, the size from which a buffer is split over several rails, and the saving."""
    members = ", ".join(f"{rail_name(member.name)} ({member.transport})" for member in rails.members)
    splits = [each.predicted for each in rails.ranges if each.reason == "split"]
    if rails.threshold_bytes is None:
        return f"Rails {members}: one carries all, at every size."
    best = min(splits, key=lambda times: times.seconds / times.single)
    return (
        f"Rails {members}: split from {bytes_text(rails.threshold_bytes)} on; {bytes_text(best.reference_bytes)} take "
        f"{seconds_text(best.seconds)}, {seconds_text(best.single)} on the best rail alone "
        f"({1 - best.seconds / best.single:z.0%} less). Only between processes."
    )


def rail_name(name: str) -> str:
    """A rail's name, or "the first rail" for the unnamed rail, which is the interface towards the coordinator."""
    return name or "the first rail"


def rail_table(rails: Rails) -> str:
    """One row per byte range: the share of each rail, and the reason for the shares."""
    rows = []
    for each in rails.ranges:
        why = _REASONS[each.reason] + "*" * each.extrapolated
        rows.append([range_text(each), shares_text(each.shares), why])
    return table(["bytes", "carried by", "why"], rows)


def rail_times_table(rails: Rails) -> str:
    """One row per byte range: the predicted time for one size in the range, and the baselines' times for this size."""
    rows = []
    for each in rails.ranges:
        given = each.predicted
        times = (given.seconds, given.single, given.fixed_ratio, given.slicing, given.lower_bound)
        saves = saved_text(1 - given.seconds / given.single) if given.single else None
        rows.append([range_text(each), bytes_text(given.reference_bytes), *map(seconds_text, times), saves])
    return table(["bytes", "times for", "time", "one rail", "fixed ratio", "slices", "bound", "saves"], rows)


def shares_text(shares: Sequence[Share]) -> str:
    """Shares per rail, such as `eth0 62.5%, eth1 37.5% (2 channels, 8 cores)`."""
    words = []
    for share in shares:
        use = [f"{share.channels} channels"] * (share.channels > 1) + [f"{share.cores} cores"] * bool(share.cores)
        words.append(f"{rail_name(share.rail)} {100 * share.share:.3g}%" + f" ({', '.join(use)})" * bool(use))
    return ", ".join(words)


def rail_notes(rails: Rails) -> Iterator[str]:
    """Yields the assumptions behind the table of shares, in one or two sentences each."""
    members = ", ".join(f"{rail_name(member.name)} ({member.transport})" for member in rails.members)
    if rails.threshold_bytes is None:
        yield f"{members}: one rail carries all, at every size."
    else:
        yield (
            f"{members}: below {bytes_text(rails.threshold_bytes)} one rail carries all (cold); from there on buffers "
            f"are split (hot). A split must save {100 * rails.min_gain:.3g}% of the best rail alone."
        )
    if len(rails.members) > 1:
        yield (
            f"Rails whose throughputs differ by more than {rails.divergence:g} times do not share a call, unless every "
            "share is at most twice the largest size measured on its rail, and the split pays."
        )
    if diverging := [each.ratio for each in rails.ranges if each.reason == "diverges" and each.ratio]:
        yield (
            f"That rule decides where rails diverge: they differ by up to {max(diverging):.3g} times. "
            "Measure larger sizes on these rails to overrule it."
        )
    if any(each.extrapolated for each in rails.ranges):
        yield (
            "*: extrapolated. A rail carries more than twice the largest size measured on it, and its time is "
            "assumed to grow as over the last octave."
        )
    yield (
        "fixed ratio: shares by nominal bandwidth; slices: 64 KiB each, or 1/1024, to the rail that is idle first; "
        "bound: every rail at its best rate, none slowed down by others."
    )
    yield "Between processes on CPUs `jaxcomm.init(plan=…)` applies the shares, without their channels and cores."
