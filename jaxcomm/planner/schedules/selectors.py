"""Selectors: two schedules for a byte range, from which each call selects by the lateness in an earlier call."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.plan.values import Entry, Nccl, ScheduleSelector, Spec
from jaxcomm.planner.byte_ranges import LARGEST, SMALLEST
from jaxcomm.planner.late_ranks import ROLE, LateRanks
from jaxcomm.planner.rounding import significant
from jaxcomm.planner.schedules.candidates import late_specs
from jaxcomm.planner.schedules.entry import entry
from jaxcomm.planner.schedules.setting import Setting
from jaxcomm.planner.schedules.turns import may_select, turns_selector
from jaxcomm.profile.cluster import SOLVED
from jaxcomm.simulate import Delays

LAG: Final = 2  # a call selects by the lateness that was observed this number of calls earlier
FEWEST: Final = 20  # at least this many steps are needed to show whether a delay predicts the next delays
LEAST: Final = 0.1  # each of the two schedules must run in at least this share of the steps
PARTS: Final = 4  # the sorted delays are cut into this number of parts; schedules are compared for each part
BLOCK: Final = 5  # number of consecutive steps in the same half; a pair fitted on one half is tested on the other

Floats = NDArray[np.float64]


class _Pair(NamedTuple):
    """Two schedules, as row numbers in a table of times. `early` runs if the earlier delay was below `lateness_s`."""

    early: int
    late: int
    lateness_s: float

    def seconds(self, times: Floats, seen: Floats) -> Floats:
        """Seconds of every step, from the late rank's arrival on.

        `seen` has, for each step, the earlier delay by which the step selects.
        """
        found: Floats = np.where(seen < self.lateness_s, times[self.early], times[self.late])
        return found


def with_selectors(setting: Setting, entries: Sequence[Entry], buckets: Collection[int]) -> tuple[Entry, ...]:
    """The entries, with a selector where two schedules save enough.

    An entry is divided if two schedules save enough for only some of its sizes. If the entry's schedule uses no delay,
    a pair of schedules must save the share `Setting.least_gain` of the entry's time. If the entry's schedule uses the
    delay, half of this share is enough, because the model's errors are then similar for the pair and the entry's
    schedule. The gain of the pair that is best on half of the steps must hold on the other half. Calls that XLA's
    collectives run have no selector.

    Args:
      setting: the plan's setting.
      entries: entries without selectors.
      buckets: sizes whose calls share the delay with other buckets of a step. These calls use the delay as the step's
        plan says.
    """
    delays = setting.late.lateness
    if setting.runs_by_xla:
        return tuple(entries)
    if may_select(setting):
        alone = buckets if len(buckets) > 1 else ()  # the buckets of a step share one delay
        return tuple(
            piece
            for each in entries
            for piece in (
                [each]
                if isinstance(each.schedule, Nccl) or each.min_bytes in alone
                else _divided(setting, partial(turns_selector, setting), each)
            )
        )
    if len(delays) < FEWEST or (setting.links.topology and setting.ranks > SOLVED):
        return tuple(entries)
    parts = [
        dataclasses.replace(setting, late=LateRanks(setting.late.roles, Delays(part.tolist())))
        for part in np.array_split(np.sort(delays), PARTS)
    ]
    found: list[Entry] = []
    for each in entries:
        fixed = isinstance(each.schedule, Nccl) or (each.min_bytes in buckets and not _uses_delay(setting, each))
        found += [each] if fixed else _divided(setting, partial(_selector, setting, parts), each)
    return tuple(found)


def _divided(setting: Setting, select: Callable[[Entry], ScheduleSelector | None], whole: Entry) -> list[Entry]:
    """The entry, divided into parts with and without a selector; unchanged if no part gets one."""
    if not setting.reaches(whole.predicted.reference_bytes):
        return [whole]
    pieces = [
        whole if (low, high) == (whole.min_bytes, whole.max_bytes) else entry(setting, low, high, at, whole.schedule)
        for low, high, at in _pieces(setting, whole)
    ]
    tried = [piece.model_copy(update={"selector": select(piece)}) for piece in pieces]
    found: list[Entry] = []
    for selects, run in itertools.groupby(tried, key=lambda piece: piece.selector is not None):
        same = list(run)
        if selects or len(same) == 1:
            found += same
        elif len(same) == len(pieces):
            return [whole]
        else:
            middle = same[len(same) // 2].predicted.reference_bytes
            found.append(entry(setting, same[0].min_bytes, same[-1].max_bytes, middle, whole.schedule))
    return found


def _pieces(setting: Setting, whole: Entry) -> Iterator[tuple[int, int | None, int]]:
    """Parts of the entry's range, each about an octave, with first bytes, last bytes and a size between them.

    With a topology every schedule is simulated, which is slow, so the whole range is one part.
    """
    low, high = max(whole.min_bytes, SMALLEST), LARGEST if whole.max_bytes is None else whole.max_bytes
    count = 1 if setting.links.topology or high <= low else max(1, round(math.log2(high / low)))
    if count == 1:
        yield whole.min_bytes, whole.max_bytes, whole.predicted.reference_bytes
        return
    begins = [round(low * (high / low) ** (part / count)) for part in range(count)]
    ends = [begin - 1 for begin in begins[1:]]
    middles = [round(low * (high / low) ** ((part + 0.5) / count)) for part in range(count)]
    yield from zip([whole.min_bytes, *begins[1:]], [*ends, whole.max_bytes], middles, strict=True)


def _uses_delay(setting: Setting, entry: Entry) -> bool:
    return setting.schedule(entry.schedule).precondition is not None


def _selector(setting: Setting, parts: Sequence[Setting], of: Entry) -> ScheduleSelector | None:
    delays, nbytes = setting.late.lateness, of.predicted.reference_bytes
    specs = list(dict.fromkeys([of.schedule, *_candidates(parts, of)]))
    times = _times(setting, specs, nbytes, delays)
    seen = np.concatenate([np.full(LAG, np.inf), delays[:-LAG]])  # the first calls run the late schedule
    margin = max(setting.least_gain(spec, of.schedule, nbytes) for spec in specs)
    needed = 1 - margin / (2 if _uses_delay(setting, of) else 1)
    if _tried(times, seen) > needed * times[0].mean():
        return None
    pair = _best(times, seen, np.ones(len(seen), bool))
    assert pair
    if pair.early == pair.late:
        return None
    for size in (max(SMALLEST, of.min_bytes), of.max_bytes or nbytes):
        ends = _times(setting, specs, size, delays)
        if pair.seconds(ends, seen).mean() > ends[0].mean():
            return None
    return ScheduleSelector(
        rank=ROLE,
        lateness_s=significant(pair.lateness_s),
        early=specs[pair.early],
        late=specs[pair.late],
        seconds=significant(float(pair.seconds(times, seen).mean())),
    )


def _candidates(parts: Sequence[Setting], of: Entry) -> Iterator[Spec]:
    """The schedules of the entry's alternatives, and the best schedules for each part of the delays."""
    for offer in of.alternatives:
        if offer.verdict not in ("too_many_ports", "ideal_delay") and not isinstance(offer.schedule, Nccl):
            yield offer.schedule
    for part in parts:
        yield from late_specs(part, of.predicted.reference_bytes)


def _times(setting: Setting, specs: Sequence[Spec], nbytes: int, delays: Floats) -> Floats:
    """Seconds from the late rank's arrival on, by schedule and step."""
    before, after = np.array([setting.cost(spec, nbytes) for spec in specs]).T
    found: Floats = np.maximum(before[:, None] - delays, 0) + after[:, None]
    return found


def _best(times: Floats, seen: Floats, steps: NDArray[np.bool_]) -> _Pair | None:
    """The pair that takes the least time in these steps; None if every threshold leaves one schedule too few steps."""
    order = np.argsort(np.where(steps, seen, np.inf), kind="stable")[: int(steps.sum())]
    delays, sums = seen[order], np.cumsum(times[:, order], axis=1)
    fewest = max(1, round(LEAST * len(order)))
    counts = np.arange(fewest, len(order) - fewest + 1)
    counts = counts[delays[counts - 1] < delays[counts]] if len(counts) else counts
    if not len(counts):
        return None
    early, late = sums[:, counts - 1], sums[:, -1:] - sums[:, counts - 1]
    at = int((early.min(axis=0) + late.min(axis=0)).argmin())
    low, high = delays[counts[at] - 1], delays[counts[at]]
    between = (low + high) / 2 if np.isfinite(high) else low * 2
    return _Pair(int(early[:, at].argmin()), int(late[:, at].argmin()), float(between))


def _tried(times: Floats, seen: Floats) -> float:
    """Mean seconds if each half of the steps runs the pair that is fastest in the other half."""
    half = np.arange(len(seen)) // BLOCK % 2 == 0
    found = np.empty(len(seen))
    for fitted, tried in itertools.permutations((half, ~half)):
        pair = _best(times, seen, fitted)
        if pair is None:
            return np.inf
        found[tried] = pair.seconds(times, seen)[tried]
    return float(found.mean())
