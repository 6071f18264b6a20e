"""Selectors for ranks that are late by turns: a schedule for whichever rank comes last to a call."""

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
from jaxcomm.simulate import Delays

FEWEST: Final = 20  # steps that can show whether ranks are late by turns
LEAST: Final = 0.5  # share of the steps to which a rank must be late
BLOCK: Final = 5  # neighbouring steps that belong to the same half, on each of which the selector must gain
DECISION: Final = 2  # latencies until all ranks know which is missing: the last arrivals', and the notice's
SHORTEST: Final = 1e-4  # seconds for which the last rank is waited for at least: jitter alone makes a rank so late

Floats = NDArray[np.float64]


def may_select(setting: Setting) -> bool:
    """Whether the profile has enough steps, and the ranks are not too many for a schedule for each."""
    turns, most = setting.late.turns, SOLVED if setting.links.topology else MAX_TURNS
    return turns is not None and len(turns.lateness) >= FEWEST and 2 < setting.ranks <= most


def turns_selector(setting: Setting, of: Entry) -> ScheduleSelector | None:
    """The selector of an entry's calls for ranks that are late by turns; None: none gains enough.

    All ranks but one having come, the others wait `lateness_s` seconds for the last one before they begin its schedule.
    Over half of the steps must have a rank that is later than this, and in both halves of the steps the selector must
    save the least gain of the entry's schedule.
    """
    turns, nbytes = setting.late.turns, of.predicted.reference_bytes
    assert turns
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
    """The schedules for one late rank, whichever it is."""
    late = dataclasses.replace(setting, late=LateRanks({ROLE: 0}, Delays(turns.lateness.tolist())))
    for spec in late_specs(late, nbytes):
        if isinstance(spec, Broadcast | StragglerSpec | Hybrid | DirectJoin | LateJoin):
            yield spec.model_copy(update={"late": ANY_RANK})


def _graces(lateness: Floats) -> list[float]:
    """Times to wait for the last rank, by factors of two, which over half of the steps exceed."""
    most = float(np.quantile(lateness, 1 - LEAST))
    return [significant(SHORTEST * 2**step) for step in range(20) if SHORTEST * 2**step < most]


def _by_rank(setting: Setting) -> list[Setting]:
    """The setting with each rank in the role of the late one; where that makes no difference, with the first."""
    differs = setting.links.topology or (setting.timed and not setting.timed.any_rank)
    ranks = range(setting.ranks) if differs else [0]
    return [dataclasses.replace(setting, late=LateRanks({ANY_RANK: rank, ROLE: rank})) for rank in ranks]


def _seconds(
    by_rank: list[Setting], turns: LatestRanks, early: Spec, late: Spec, grace: float, nbytes: int
) -> NDArray[np.float64]:
    """Of every step, from the last rank's arrival on. Also a call with no late rank waits for the decision."""
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
