"""The words for the parts of a plan. All reports use them."""

from __future__ import annotations

import textwrap
from typing import Final

from jaxcomm.plan.byte_ranges import EntryRange
from jaxcomm.plan.origin import Delay, TimedBasis
from jaxcomm.plan.schema import Plan
from jaxcomm.plan.values import (
    Alternative,
    Chain,
    DirectJoin,
    Entry,
    HalvingDoubling,
    Hierarchical,
    HierarchicalHalves,
    Hybrid,
    LateJoin,
    Nccl,
    ScheduleSelector,
    Spec,
    Stragglers,
    StragglerSpec,
    Transfers,
)
from jaxcomm.profile import lateness
from jaxcomm.report.tables import bytes_text, seconds_text

_VERDICTS: Final = {
    "kept_here": "a run has tried the chosen one, and kept it",
    "chosen": "chosen",
    "slower": "slower",
    "slower_here": "slower where they were run",
    "not_timed": "not timed: profile with larger --sizes",
    "window_taken": "delay already used",
    "calls_only": "not for buckets",
    "too_many_ports": "needs more peers at once",
    "ideal_delay": "only if always late enough",
}


def verdict_text(plan: Plan, entry: Entry, offer: Alternative) -> str:
    """The reason for an alternative's verdict, in words that do not contradict the predicted times."""
    chosen = entry.predicted.seconds
    more = 1 - offer.seconds / chosen if chosen > 0 else 0.0
    if offer.verdict == "slower" and entry.measured and more > 0:
        return "not run here; by the model slower than one that was run"
    if offer.verdict != "below_threshold":
        return _VERDICTS[offer.verdict]
    saves = f"not sure enough: saves {more:.1%} of the chosen one"
    least = plan.assumptions.min_gain
    # A timed schedule must also save more than the error of its time, which depends on the size. If `more >= least`,
    # this error decided, not `min_gain`.
    return f"{saves}, must save {least:.1%}" if more < least else f"{saves}, within the error of the times"


TOLERATED: Final = 0.03  # times that are longer by less than this share are printed as a saving of 0 %


def saved_text(share: float) -> str:
    """The share of a time that is saved, such as `12%`; `none` if the share is clearly negative."""
    return f"{max(0.0, share):.0%}" if share > -TOLERATED else "none"


def nobody_late_text(who: str, late: lateness.Straggler | Delay, ranks: int) -> str:
    """The reason why no rank is late.

    Args:
      who: the rank that is last most often, such as `rank 3`.
      late: the number of steps, the number of steps in which rank `who` was last, and the delays of rank `who`.
      ranks: number of ranks.
    """
    if not late.late_steps:
        return "no rank is late: no rank ever arrived after all others"
    text = f"no rank is late: {who} was last in {late.late_steps} of {late.steps} steps"
    by_chance = lateness.chance(late.late_steps, late.steps, ranks)
    if by_chance >= lateness.SIGNIFICANCE:
        return f"{text}, which chance explains (p = {by_chance:.2g})"
    return f"{text}, but by {seconds_text(late.mean_s)} (mean), small relative to the others' spread"


def fit_text(samples: int, residual: float, alpha_assumed: bool) -> str:
    """The quality of the measurements of a link's α and β, such as `12 timed calls, residual 3.1%`."""
    calls = f"{samples} timed call{'s' * (samples != 1)}"
    if alpha_assumed:
        return f"α assumed: {f'{calls} of about one size cannot show it' if samples else 'no call was timed'}"
    return f"{calls}, residual {residual:.1%}" if samples else "given, not fitted"


def timed_text(timed: TimedBasis) -> str:
    """Describes the measurements from which the planner chose among timed schedules."""
    where = {"memory": "in memory that all ranks share", "messages": "between processes", "xla": "by XLA's collectives"}
    return (
        f"{timed.schedules} whole schedules were timed {where[timed.executor]}, with no rank late and with one rank "
        f"late, at {timed.sizes} size{'s' * (timed.sizes != 1)} from {bytes_text(timed.smallest)} to "
        f"{bytes_text(timed.largest)}; their times are interpolated. A model fitted to the others misses a "
        f"schedule's time by {timed.model_error:.0%} (median)."
    )


def alpha_assumed_text(alpha_s: float) -> str:
    """The note below a plan's predicted times if α was assumed instead of measured."""
    return textwrap.fill(
        f"α is assumed ({seconds_text(alpha_s)}), not measured: these times are guesses, and no schedule that uses a "
        "delay was considered, as its gain could be a loss. To measure α, time sums whose sizes differ by a factor of "
        "two or more: `jaxcomm profile`, or a run that sums a small array, too.",
        110,
    )


def selector_text(selector: ScheduleSelector) -> str:
    """The schedules of a selector, and its rule for choosing one of them."""
    early, late = spec_text(selector.early), spec_text(selector.late)
    lateness = seconds_text(selector.lateness_s)
    if selector.by_turns:
        return f"{early}, or, if a rank has not arrived {lateness} after all others, {late} for this rank"
    return f"{early}, or, after a call in which the late rank was {lateness} late or more, {late}"


def range_text(entry: EntryRange) -> str:
    """The byte range of an entry, such as `64 KiB – 1 MiB`; the upper end is excluded."""
    if not entry.min_bytes and entry.max_bytes is None:
        return "any size"
    low = bytes_text(entry.min_bytes) if entry.min_bytes else "0"
    if entry.max_bytes is None:
        return f"{low} and more"
    return low if entry.max_bytes == entry.min_bytes else f"{low} – {bytes_text(entry.max_bytes + 1)}"


def runs_text(runs: Entry | Alternative) -> str:
    """A schedule with its parameters, followed by the executor if XLA's collectives run the schedule."""
    return spec_text(runs.schedule) + ", by XLA" * (runs.executor == "xla")


def spec_text(spec: Spec) -> str:
    """A schedule with its parameters, such as `straggler, 14 chunks`."""
    match spec:
        case Nccl():
            return f"NCCL, elsewhere {spec.otherwise.replace('_', '/')}"
        case HalvingDoubling():
            return f"halving/doubling, {spec.order.replace('_', ' ')}"
        case Hierarchical():
            early = f", {spec.within} within and {spec.across} across early" if spec.late else ""
            return f"hierarchical, {_chunks(spec.chunks)}{early}"
        case HierarchicalHalves():
            return "hierarchical halves"
        case DirectJoin() | LateJoin() | StragglerSpec():
            return f"{spec.kind.replace('_', ' ')}, {_chunks(spec.chunks)}"
        case Stragglers():
            return f"{len(spec.late)} stragglers, {_chunks(spec.chunks)}"
        case Chain():
            return f"chain of {len(spec.late)} stragglers, {_chunks(spec.chunks)}"
        case Hybrid():
            return f"hybrid, {spec.covered} of {_chunks(spec.chunks)}"
        case Transfers():
            return f"solved schedule {spec.index}, {_chunks(spec.chunks)}"
    return spec.kind.replace("_", "/")


def _chunks(count: int) -> str:
    return f"{count} chunk{'s' * (count != 1)}"
