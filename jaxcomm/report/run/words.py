"""A run in words and tables: the plans in force, the call sites, the rails, and the events of plan="auto"."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence

from jaxcomm.ffi.shares import UNITS
from jaxcomm.log import printable
from jaxcomm.profile.run_file import RunEvent, RunPlan, RunRail, SavedRun, ScheduleFrom
from jaxcomm.records import Outcome
from jaxcomm.report.run.sites import generation_lines, gone_lines, rail_state, rails_table, sites_table
from jaxcomm.report.tables import bytes_text, seconds_text, table

_OUTCOMES: dict[Outcome, str] = {
    "begun": "began to watch",
    "followed": "plan followed",
    "taken back": "plan taken back, as no gain was sure",
    "no plan": "no plan is better than none",
    "not measured": "plan followed, its gain is not known",
    "not switched": "could not switch",
    "failed": "failed",
    "ended": "ended, as a process is gone",
}


def summary(run: SavedRun) -> str:
    """Tables and lines: call sites, rails, changes of members, processes that left or failed, fences, and events."""
    parts = [sites_table([site.model_dump() for site in run.sites])]
    if run.rails:
        parts.append(rails_table([rail.model_dump() for rail in run.rails]))
    rows = [
        [f"{change.at_s:.3f} s", rail.process, rail.rail, "taken back" if change.is_open else "fenced", change.why]
        for rail in run.rails
        for change in rail.changes
    ]
    lines = generation_lines([each.model_dump() for each in run.generations])
    lines += gone_lines([each.model_dump() for each in run.gone])
    if lines:
        parts.append("\n".join(lines))
    if rows:
        head = ["at", "process", "rail", "what", "why"]
        parts.append(table(head, sorted(rows, key=lambda row: float(str(row[0]).split()[0]))))
    if run.events:
        parts.append(_auto(run))
    return "\n\n".join(parts)


def in_force(run: SavedRun, now: datetime.datetime) -> str:
    """The plans that calls follow, with their ranges, and the rails' shares by range. The file's age is as of `now`."""
    ago = f"{seconds_text(max(0.0, (now - run.written).total_seconds()))} ago, " if run.written else ""
    parts = [f"As the run wrote it {ago}{seconds_text(run.at_s)} after it began."]
    parts += [_plan(plan) for plan in run.plans] or ["No plan is followed: all-reduces run the direct schedule."]
    if run.rails:
        parts.append(_shares(run))
    return "\n\n".join(parts)


def _auto(run: SavedRun) -> str:
    """Counts the situations that plan="auto" found and the plans that it tried; gives the best gain and all events."""
    tried = [event for event in run.events if event.plan]
    kept = [event for event in tried if event.outcome != "taken back"]
    gains = [1 - event.after_s / event.before_s for event in kept if event.before_s and event.after_s is not None]
    situations = [event for event in run.events if event.outcome not in ("begun", "not switched", "ended")]
    best = f"; the best gained {max(gains):.1%}" if gains and max(gains) > 0 else ""
    counts = f"{_count(len(situations), 'situation')} seen, {_count(len(tried), 'plan')} tried{best}"
    return f'plan="auto": {counts}.\n\n{events_table(run)}'


def events_table(run: SavedRun) -> str:
    """One row per event of plan="auto"."""
    head = ["at", "late", "by", "plan", "outcome", "step before", "after", "gained"]
    return table(head, [_row(event) for event in run.events])


def _row(event: RunEvent) -> list[str | None]:
    late = ", ".join(f"rank {rank}" for rank in event.late) or None
    gained = None
    if event.before_s and event.after_s is not None:
        gained = f"{1 - event.after_s / event.before_s:.1%}"
    times = [None if seconds is None else seconds_text(seconds) for seconds in (event.before_s, event.after_s)]
    by = seconds_text(event.late_by_s) if event.late else None
    return [f"{event.at_s:.1f} s", late, by, event.plan or None, _OUTCOMES[event.outcome], *times, gained]


def _plan(plan: RunPlan) -> str:
    axes = f" over {printable(', '.join(plan.axes))}" if plan.axes else ""
    if not plan.collectives:
        return f"Calls{axes} follow no plan" + (", until the run makes one." if plan.plan == "auto" else ".")
    roles = "".join(f", {printable(role)} is rank {rank}" for role, rank in plan.roles.items())
    text = f"Calls{axes} follow plan {printable(plan.plan)} for {plan.ranks} ranks{roles}, since {plan.since_s:.1f} s."
    pairs = itertools.groupby(plan.collectives, key=_schedules)
    kinds = [(next(own).min_bytes, kind.replace("_", "/")) for kind, own in pairs]
    rows = zip(_ranges([low for low, _ in kinds]), (kind for _, kind in kinds), strict=True)
    parts = [text, table(["all-reduces of", "run"], [*rows])]
    if plan.rails:
        low = plan.rails.threshold_bytes
        parts.append(f"It splits calls over rails {'at no size' if low is None else f'from {bytes_text(low)} on'}.")
    return "\n\n".join(parts)


def _schedules(entry: ScheduleFrom) -> str:
    selector = entry.selector
    if selector is None:
        return entry.schedule
    kinds = f"{selector.early} or {selector.late}"
    if selector.by_turns:
        return kinds + f", for the rank that has not arrived {seconds_text(selector.lateness_s)} after all others"
    return kinds + f", after a call in which the late rank was {seconds_text(selector.lateness_s)} late or more"


def _shares(run: SavedRun) -> str:
    lows = sorted({low for rail in run.rails for low, _ in rail.shares})
    rows = [
        [
            rail.process,
            rail.rail,
            rail_state(rail.is_open, rail.has_left),
            *(f"{_share(rail, low):.1%}" for low in lows),
        ]
        for rail in run.rails
    ]
    peers = {rail.process for rail in run.rails}
    split = [low for low in lows if sum(_share(rail, low) > 0 for rail in run.rails) > len(peers)]
    text = "One rail to each process carries all, at every size."
    if split:
        text = (
            f"Calls of {bytes_text(split[0])} or more take several rails"
            if split[0]
            else "All calls take several rails"
        )
        text += ", but a message of one segment, less than 128 KiB, is on one of them."
    return f"{table(['process', 'rail', 'state', *_ranges(lows)], rows)}\n{text}"


def _share(rail: RunRail, low: int) -> float:
    return next((units for at, units in reversed(rail.shares) if at <= low), 0) / UNITS


def _ranges(lows: Sequence[int]) -> list[str]:
    """Names the ranges that begin at these sizes. Each range ends at the next size."""
    highs = [bytes_text(low) for low in lows[1:]]
    words = [f"{bytes_text(low)} – {high}" for low, high in zip(lows, highs, strict=False)]
    return [*words, f"{bytes_text(lows[-1])} and more" if len(lows) > 1 else "any size"]


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
