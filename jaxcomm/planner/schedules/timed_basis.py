"""The plan's record of the timed schedules on which its choice rests."""

from __future__ import annotations

from collections.abc import Sequence

from jaxcomm.plan.origin import TimedBasis
from jaxcomm.plan.values import Entry
from jaxcomm.planner.rounding import significant
from jaxcomm.planner.schedules.candidates import plain, timed_specs
from jaxcomm.planner.schedules.setting import Setting


def basis(setting: Setting, entries: Sequence[Entry]) -> TimedBasis | None:
    """The record for a plan with these entries; None if no schedules were timed."""
    timed = setting.timed
    if timed is None:
        return None
    late = [spec for spec in timed_specs(setting) if setting.schedule(spec).precondition]
    plains = {size: plain(setting, size) for size in timed.sizes}
    margins = [setting.least_gain(spec, plains[size], size) for spec in late for size in timed.sizes]
    unused = next((entry.min_bytes for entry in entries if _uses_delay(setting, entry)), timed.sizes[-1] + 1)
    same = [size for size in timed.sizes if size < unused and setting.late.roles]
    chosen = next((entry for entry in reversed(entries) if same and entry.min_bytes <= same[-1]), None)
    is_own = chosen and (chosen.executor == "xla" or chosen.schedule.kind == "lax") == setting.runs_by_xla
    return TimedBasis(
        executor=timed.timed.executor,
        schedules=len(timed.timed.schedules),
        sizes=len(timed.sizes),
        smallest=timed.sizes[0],
        largest=timed.sizes[-1],
        margins=(significant(min(margins)), significant(max(margins))) if margins else (0.0, 0.0),
        model_error=significant(timed.error),
        same_bytes=same[-1] if same else None,
        same_s=significant(setting.seconds(chosen.schedule, same[-1])) if chosen and is_own else None,
    )


def _uses_delay(setting: Setting, entry: Entry) -> bool:
    return any(setting.schedule(spec).precondition is not None for spec in entry.specs.values())
