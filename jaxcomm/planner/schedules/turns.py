"""Selectors for late ranks that differ from call to call: a schedule for whichever rank arrives last at a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.plan.limits import MAX_TURNS
from jaxcomm.plan.values import (
    ANY_RANK,
    Broadcast,
    DirectJoin,
    Entry,
    Hybrid,
    LateJoin,
    ScheduleSelector,
    Spec,
    StragglerSpec,
)
from jaxcomm.planner.byte_ranges import SMALLEST
from jaxcomm.planner.late_ranks import ROLE, LateRanks, LatestRanks
from jaxcomm.planner.rounding import significant
from jaxcomm.planner.schedules.candidates import late_specs
from jaxcomm.planner.schedules.setting import Setting
from jaxcomm.profile.cluster import SOLVED
from jaxcomm.profile.lateness import LEAST_LATENESS
from jaxcomm.simulate import Delays

FEWEST: Final = 20  # at least this many steps are needed to show whether different ranks are late
LEAST: Final = 0.5  # some rank must be late in at least this share of the steps
BLOCK: Final = 5  # number of consecutive steps that go to the same half; the selector must gain in both halves
DECISION: Final = 2  # latencies until all ranks know which rank is missing: one for the arrivals, one for the decision
SHORTEST: Final = 1e-4  # minimum seconds to wait for the last rank, because jitter alone makes ranks this late

Floats = NDArray[np.float64]


def may_select(setting: Setting) -> bool:
    """Whether the profile has enough steps, and few enough ranks for one schedule per rank."""
    turns, most = setting.late.turns, SOLVED if setting.links.topology else MAX_TURNS
    return turns is not None and len(turns.lateness) >= FEWEST and 2 < setting.ranks <= most


def turns_selector(setting: Setting, of: Entry) -> ScheduleSelector | None:
    """The selector of an entry's calls if each rank may be the late one; None if no selector gains enough.

    When all ranks but one have arrived, they wait `lateness_s` seconds for the last rank. If the last rank is still
    missing then, they begin the schedule for this late rank. In over half of the steps some rank must be later than
    `lateness_s` and later than a tenth of the call's time. In both halves of the steps the selector must save at least
    `Setting.least_gain` of the time of the entry's schedule.
    """
    turns, nbytes = setting.late.turns, of.predicted.reference_bytes
    assert turns
    if np.median(turns.lateness) < LEAST_LATENESS * setting.seconds(of.schedule, nbytes):
        return None
    by_rank = _by_rank(setting)
    best: tuple[float, Spec, float] | None = None
    for spec in _offers(setting, turns, nbytes):
        least = 1 - setting.least_gain(spec, of.schedule, nbytes)
        for grace in _graces(turns.lateness):
            found = _seconds(by_rank, turns, of.schedule, spec, grace, nbytes)
            half = np.arange(len(found)) // BLOCK % 2 == 0
            gains = max(found[half].mean(), found[~half].mean()) < least * setting.seconds(of.schedule, nbytes)
            if gains and (best is None or found.mean() < best[0]):
                best = float(found.mean()), spec, grace
    if best is None:
        return None
    seconds, spec, grace = best
    for size in (max(SMALLEST, of.min_bytes), of.max_bytes or nbytes):
        if _seconds(by_rank, turns, of.schedule, spec, grace, size).mean() > setting.seconds(of.schedule, size):
            return None
    return ScheduleSelector(rank=ANY_RANK, lateness_s=grace, early=of.schedule, late=spec, seconds=significant(seconds))


def _offers(setting: Setting, turns: LatestRanks, nbytes: int) -> Iterator[Spec]:
    """The schedules for one late rank, which may be any rank."""
    late = dataclasses.replace(setting, late=LateRanks({ROLE: 0}, Delays(turns.lateness.tolist())))
    for spec in late_specs(late, nbytes):
        if isinstance(spec, Broadcast | StragglerSpec | Hybrid | DirectJoin | LateJoin):
            yield spec.model_copy(update={"late": ANY_RANK})


def _graces(lateness: Floats) -> list[float]:
    """Times to wait for the last rank, each twice the previous one.

    All these times are below the last rank's lateness in over half of the steps.
    """
    most = float(np.quantile(lateness, 1 - LEAST))
    return [significant(SHORTEST * 2**step) for step in range(20) if SHORTEST * 2**step < most]


def _by_rank(setting: Setting) -> list[Setting]:
    """One setting per rank, with this rank as the late rank; only the setting of rank 0 if ranks do not differ."""
    differs = setting.links.topology or (setting.timed and not setting.timed.any_rank)
    ranks = range(setting.ranks) if differs else [0]
    return [dataclasses.replace(setting, late=LateRanks({ANY_RANK: rank, ROLE: rank})) for rank in ranks]


def _seconds(
    by_rank: list[Setting], turns: LatestRanks, early: Spec, late: Spec, grace: float, nbytes: int
) -> NDArray[np.float64]:
    """Seconds of every step, from the last rank's arrival on. Calls without a late rank also wait for the decision."""
    decision = DECISION * by_rank[0].links.alpha
    before, after = np.array([each.cost(late, nbytes) for each in by_rank]).T
    last = turns.last if len(by_rank) > 1 else np.zeros_like(turns.last)
    plain = by_rank[0].cost(early, nbytes)
    found: Floats = np.where(
        turns.lateness < grace,
        sum(plain) + decision,
        np.maximum(before[last] + decision - (turns.lateness - grace), 0) + after[last],
    )
    return found
