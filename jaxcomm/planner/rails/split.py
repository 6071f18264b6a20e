"""Finds the shares with which rails carry a buffer of one size in the least time, by their measured tables."""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.ffi.shares import UNITS  # shares are multiples of 1/UNITS, which floats hold exactly
from jaxcomm.plan.rails import Share
from jaxcomm.planner.rails import times
from jaxcomm.planner.rails.times import RailOption
from jaxcomm.profile import Profile

TIE: Final = 1e-6  # one more rail, connection or core must save at least this share of the least time
SLICE: Final = 64 * 1024  # size of an MPTCP slice, in bytes
SLICES: Final = 1024  # maximum number of slices of a buffer


class Load(NamedTuple):
    """One rail's part of a buffer: the option that the rail uses, and its share."""

    option: RailOption
    share: float

    def bytes(self, nbytes: int) -> float:
        """The number of bytes of a buffer of `nbytes` that the rail carries."""
        return nbytes * self.share


Split = tuple[Load, ...]


def seconds(profile: Profile, shares: Sequence[Share], nbytes: int) -> float:
    """Predicted time of an allreduce with these shares, by the profile's tables, if all ranks arrive together."""
    return split_seconds(tuple(Load(_option(profile, each), each.share) for each in shares), nbytes)


def split_seconds(split: Split, nbytes: int) -> float:
    """The time at which the last rail finishes. A rail that runs beside others is slower by its factor `slowdown`."""
    if len(split) == 1:
        return split[0].option.seconds(nbytes)
    return max(load.option.together(load.bytes(nbytes)) for load in split)


def fastest_rail(rails: Sequence[Sequence[RailOption]], nbytes: int) -> RailOption:
    """The fastest use of a single rail. Among equally fast uses, the first is taken, which is the least demanding."""
    return min((option for options in rails for option in options), key=lambda option: option.seconds(nbytes))


def best_split(
    rails: Sequence[Sequence[RailOption]], nbytes: int, cores: int | None, *, within_reach: bool = False
) -> Split | None:
    """The shares that minimise the time of the slowest rail, slowdowns included; None if no split beats the best rail.

    No rail gets faster by carrying more, so each option has a greatest share that it carries in t seconds. A split in t
    seconds exists if and only if these shares can sum to 1. A binary search over the times of all shares of all options
    finds the least such t exactly. Among splits of that time, the least demanding one is taken. From the last rail to
    the first, each rail stays idle if the earlier rails can carry the rest. Otherwise it takes the first of its options
    with which the earlier rails can carry the rest.

    The search takes log2(1024 · options) calls of `fronts`.

    Args:
      rails: the options of every rail.
      nbytes: size of the buffer.
      cores: CPU cores that all rails may use together; None: no limit.
      within_reach: whether to keep each rail within its table's `reach`.
    """
    best = fastest_rail(rails, nbytes).seconds(nbytes)
    sizes = nbytes * np.arange(1, UNITS + 1) / UNITS

    def seconds_by_share(option: RailOption) -> NDArray[np.float64]:
        rounded = option.rail.slowdown * option.curve(sizes)
        found = np.maximum.accumulate(rounded)  # rounding can make a larger share seem faster
        return np.where(sizes > option.reach, np.inf, found) if within_reach else found

    times = [[seconds_by_share(option) for option in options] for options in rails]

    def uses(end: float) -> list[list[Use]]:
        most = [[int(row.searchsorted(end, "right")) for row in each] for each in times]
        return [
            [Use(option, 0 if cores is None else option.cores or 0, units) for option, units in zip(*each, strict=True)]
            for each in zip(rails, most, strict=True)
        ]

    limit = cores or 0
    ends = np.unique(np.concatenate([row[: row.searchsorted(best)] for each in times for row in each]))
    first = bisect.bisect_left(ends, True, key=lambda end: max(fronts(uses(end), limit)[-1].values()) >= UNITS)
    if first == len(ends) or (end := (1 + TIE) * float(ends[first])) >= best:
        return None
    taken: list[Use] = []
    needed = UNITS
    offered = uses(end)
    for options, front in reversed(list(zip(offered, fronts(offered, limit), strict=False))):
        if any(used <= limit and units >= needed for used, units in front.items()):
            continue
        use = next(
            use
            for use in options
            if any(used + use.cores <= limit and units + use.units >= needed for used, units in front.items())
        )
        taken.insert(0, use)
        needed -= use.units
        limit -= use.cores
    edges = list(itertools.accumulate((use.units for use in taken), initial=0))
    scaled = [UNITS * edge // edges[-1] for edge in edges]  # scaled down, so every rail still finishes in time
    shares = [(high - low) / UNITS for low, high in itertools.pairwise(scaled)]
    return tuple(Load(use.option, share) for use, share in zip(taken, shares, strict=True) if share)


class Use(NamedTuple):
    """An option, and the maximum share of the buffer with which its rail finishes in time.

    `cores` is the option's number of cores, 0 if cores are not limited. `units` is the share in units of 1/`UNITS`.
    """

    option: RailOption
    cores: int
    units: int


def fronts(rails: Sequence[Sequence[Use]], cores: int) -> list[dict[int, int]]:
    """Entry r of the result maps each number of cores to the most units that the first r rails carry with these cores.

    Each rail is idle or takes one of its uses. More than `UNITS` units count as `UNITS`. Entries that take more cores
    without carrying more units are left out, so each front has at most `UNITS` + 1 entries.
    """
    found = [{0: 0}]
    for uses in rails:
        sums = dict(found[-1])
        for taken, units in found[-1].items():
            for _, asked, more in uses:
                if taken + asked <= cores:
                    sums[taken + asked] = max(sums.get(taken + asked, 0), min(UNITS, units + more))
        front, most = {}, -1
        for taken, units in sorted(sums.items()):
            if units > most:
                front[taken] = most = units
        found.append(front)
    return found


def fixed_ratio(rails: Sequence[Sequence[RailOption]], nbytes: int) -> float:
    """Seconds if the buffer is split in proportion to nominal bandwidths, as in MRIB by Liu, Vishnu and Panda.

    A rail without nominal bandwidth counts with the rate of its last sample. Each rail uses one channel, and its best
    number of cores.
    """
    plain = [_plain(options, nbytes) for options in rails]
    rates = [option.rail.bytes_per_s or option.curve.sizes[-1] / option.curve.times[-1] for option in plain]
    if len(plain) == 1:
        return plain[0].seconds(nbytes)
    return max(option.together(nbytes * rate / sum(rates)) for option, rate in zip(plain, rates, strict=True))


def slicing(rails: Sequence[Sequence[RailOption]], nbytes: int) -> float:
    """Seconds if each slice goes to the rail that becomes idle first, as in MPTCP; each slice is a call of its own.

    A slice has 64 KiB, or 1/1024 of the buffer if that is more; rails are used as in `fixed_ratio`.
    """
    count = min(SLICES, math.ceil(nbytes / SLICE))
    plain = [_plain(options, nbytes) for options in rails]
    alone = len(plain) == 1 or count == 1
    times = [option.seconds(nbytes / count) if alone else option.together(nbytes / count) for option in plain]
    idle = [(0.0, index) for index in range(len(plain))]
    end = 0.0
    for _ in range(count):
        start, index = heapq.heappop(idle)
        end = max(end, start + times[index])
        heapq.heappush(idle, (start + times[index], index))
    return end


def lower_bound(rails: Sequence[Sequence[RailOption]], nbytes: int) -> float:
    """Seconds that no split can beat: each rail runs at its best rate of any size up to `nbytes`, without slowdown."""
    rate = sum(max(option.best_rate(nbytes) for option in options) for options in rails)
    least = min(option.curve.times[0] for options in rails for option in options)
    return max(nbytes / rate, least)


def _plain(options: Sequence[RailOption], nbytes: int) -> RailOption:
    return min((option for option in options if option.channels == 1), key=lambda option: option.seconds(nbytes))


def _option(profile: Profile, share: Share) -> RailOption:
    rail = next(rail for rail in profile.rails if rail.name == share.rail)
    use = share.channels, share.cores
    return next(option for option in times.options(profile, rail) if (option.channels, option.cores) == use)
