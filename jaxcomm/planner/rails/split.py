"""The shares of one buffer size: the least time in which the rails carry all of it, by their measured tables."""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from jaxcomm.ffi.shares import UNITS  # shares are multiples of 1/UNITS, which floats hold exactly
from jaxcomm.plan.rails import Share
from jaxcomm.planner.rails import times
from jaxcomm.planner.rails.times import RailOption
from jaxcomm.profile import Profile

TIE: Final = 1e-6  # of the least time, which using a rail, or asking more of it, must save to be worth it
SLICE: Final = 64 * 1024  # bytes of a slice as MPTCP would make it
SLICES: Final = 1024  # at most


class Load(NamedTuple):
    """One rail's part: how it is used, and its share."""

    option: RailOption
    share: float

    def bytes(self, nbytes: int) -> float:
        """Its bytes of a buffer."""
        return nbytes * self.share


Split = tuple[Load, ...]


def seconds(profile: Profile, shares: Sequence[Share], nbytes: int) -> float:
    """Predicted time of an allreduce that is split so, by the profile's tables; all ranks come together."""
    return split_seconds(tuple(Load(_option(profile, each), each.share) for each in shares), nbytes)


def split_seconds(split: Split, nbytes: int) -> float:
    """When the last rail is done; a rail that shares a call takes its `slowdown` times as long as alone."""
    if len(split) == 1:
        return split[0].option.seconds(nbytes)
    return max(load.option.together(load.bytes(nbytes)) for load in split)


def fastest_rail(rails: Sequence[Sequence[RailOption]], nbytes: int) -> RailOption:
    """The rail that is fastest alone, used in the way that asks for least among the equally fast."""
    return min((option for options in rails for option in options), key=lambda option: option.seconds(nbytes))


def best_split(rails: Sequence[Sequence[RailOption]], nbytes: int, cores: int | None) -> Split | None:
    """The shares that minimise the time of the slowest rail, slowdowns included; None: none beats the best rail.

    No rail gets faster by carrying more, so in t seconds an option carries some greatest share, and a split takes at
    most t if and only if such shares add up to a whole: binary search over all times that any share of any option
    takes finds the least such t, exactly. Of the splits that take as long, rails are asked for little: the last one
    first, each stays idle or takes the first of its options with which the others still carry the rest.

    The work is bounded: log2(1024 · options) times `fronts`.

    Args:
      rails: the options of every rail.
      nbytes: size of the buffer.
      cores: CPU cores that all rails may use together; None: no limit.
    """
    best = fastest_rail(rails, nbytes).seconds(nbytes)
    sizes = nbytes * np.arange(1, UNITS + 1) / UNITS
    times = [
        # Rounding may make them fall.
        [np.maximum.accumulate(option.rail.slowdown * option.curve(sizes)) for option in options]
        for options in rails
    ]

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
    scaled = [UNITS * edge // edges[-1] for edge in edges]  # no rail gets more than it carries in time
    shares = [(high - low) / UNITS for low, high in itertools.pairwise(scaled)]
    return tuple(Load(use.option, share) for use, share in zip(taken, shares, strict=True) if share)


class Use(NamedTuple):
    """An option, the cores that it takes (0 where they do not count), and the most units that it carries in time."""

    option: RailOption
    cores: int
    units: int


def fronts(rails: Sequence[Sequence[Use]], cores: int) -> list[dict[int, int]]:
    """For the first 0, 1, 2, ... rails, each by one of its uses or idle: the most units, up to `UNITS`, that they carry
    together, by the cores that they take for it.

    What takes more cores and carries no more than another is left out, so there are never more than `UNITS` + 1 each.
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
    """Seconds if every rail gets a share by its nominal bandwidth, at every size: Liu, Vishnu and Panda's MRIB.

    Where the profile has no nominal bandwidth the rate at the last sample takes its place. Rails are used without
    virtual ones, and with as many cores as are best for each.
    """
    plain = [_plain(options, nbytes) for options in rails]
    rates = [option.rail.bytes_per_s or option.curve.sizes[-1] / option.curve.times[-1] for option in plain]
    if len(plain) == 1:
        return plain[0].seconds(nbytes)
    return max(option.together(nbytes * rate / sum(rates)) for option, rate in zip(plain, rates, strict=True))


def slicing(rails: Sequence[Sequence[RailOption]], nbytes: int) -> float:
    """Seconds if slices go one by one to the rail that is idle first, as MPTCP's do: each slice is a call of its own.

    Slices of 64 KiB, or of 1/1024 of a larger buffer; rails are used as for a fixed ratio.
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
    """Seconds that no split can beat: every rail at the best rate of any size up to this one, none slowed down."""
    rate = sum(max(option.best_rate(nbytes) for option in options) for options in rails)
    least = min(option.curve.times[0] for options in rails for option in options)
    return max(nbytes / rate, least)


def _plain(options: Sequence[RailOption], nbytes: int) -> RailOption:
    return min((option for option in options if option.channels == 1), key=lambda option: option.seconds(nbytes))


def _option(profile: Profile, share: Share) -> RailOption:
    rail = next(rail for rail in profile.rails if rail.name == share.rail)
    use = share.channels, share.cores
    return next(option for option in times.options(profile, rail) if (option.channels, option.cores) == use)
