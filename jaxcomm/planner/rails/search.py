"""How a buffer of any size is split over unlike rails: by measured tables, and not at all where that would not pay.

Source: "Nezha: Breaking Multi-Rail Network Barriers for Distributed DNN Training", sections 2.3 and 4.3.
Nezha searches threshold and shares by gradient descent while it runs; here they follow from the tables before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

import numpy as np

from jaxcomm.plan.rails import MAX_RANGES, Member, RailRange, Rails, Reason, Share, SplitTimes
from jaxcomm.planner.byte_ranges import Choices, byte_ranges, sizes_between
from jaxcomm.planner.rails.split import (
    Load,
    Split,
    best_split,
    fastest_rail,
    fixed_ratio,
    lower_bound,
    slicing,
    split_seconds,
)
from jaxcomm.planner.rails.times import RailOption, options
from jaxcomm.planner.rounding import significant
from jaxcomm.profile import Profile

DIVERGENCE: Final = 5.0  # τ of the paper's equation 3
STEPS: Final = 2  # sizes per octave that are looked at
SLACKS: Final = (0.016, 0.04, 0.08, 0.16)  # of the best split as shares are rounded; the first: 2 % of the best of all
MIN_GAIN: Final = round(SLACKS[0] / (1 + SLACKS[0]), 6)  # one rail alone is within the same slack of the best split
FINEST: Final = 1.001  # ratio of the ends of a range that is not divided further


def decide(profile: Profile, min_gain: float = MIN_GAIN) -> Rails | None:
    """How buffers are split over the profile's rails.

    For each size `best_split` finds the shares after which the last rail ends soonest.
    The split is taken if it saves at least `min_gain` of what the best rail takes alone, and if its rails do not
    diverge: a share's throughput is its bytes over its predicted time, and rails whose throughputs differ by more than
    τ = 5 (equation 3) do not share a call, unless the tables overrule this default, which they do where every share of
    the split lies between the first and the last size measured on its rail. A split that diverges is tried again
    without its slowest rail.

    Args:
      profile: with or without rails.
      min_gain: the least saving that is worth a split, as a share.

    Returns:
      Ranges over all sizes, or None if the profile has no rails.

    Raises:
      ProfileError: a rail's table holds a time of 0, or asks for more CPU cores than there are.
    """
    if not profile.rails:
        return None
    rails = [options(profile, rail) for rail in profile.rails]
    setting = _RailSearch(rails, profile.cpu_cores, min_gain)
    ranges = _named(tuple(_ranges(setting)))
    return Rails(
        members=tuple(Member(name=rail.name, transport=rail.transport) for rail in profile.rails),
        threshold_bytes=next((each.min_bytes for each in ranges if each.reason == "split"), None),
        divergence=DIVERGENCE,
        min_gain=min_gain,
        cpu_cores=profile.cpu_cores,
        ranges=ranges,
    )


class _Choice(NamedTuple):
    """The split for a size, why it is so, and how far the rails of the best split of all differ.

    `seconds` are those of the split, and `alone` those of the best rail alone.
    """

    split: Split
    reason: Reason
    ratio: float | None
    seconds: float
    alone: float

    @property
    def kind(self) -> object:
        """The reason and the rails, and how a rail alone is used; where they change, a range ends."""
        rails = tuple(load.option.rail.name for load in self.split)
        return self.reason, rails, self.split[0].option.use if len(rails) == 1 else None


class _RailSearch(NamedTuple):
    rails: Sequence[Sequence[RailOption]]
    cores: int | None
    min_gain: float

    def choose(self, nbytes: int) -> _Choice:
        """The split for buffers of `nbytes`."""
        best = fastest_rail(self.rails, nbytes)
        whole, alone = (Load(best, 1.0),), best.seconds(nbytes)
        if len(self.rails) == 1:
            return _Choice(whole, "only_rail", None, alone, alone)
        rails, first = self.rails, None
        while split := best_split(rails, nbytes, self.cores):
            taken = split_seconds(split, nbytes)
            if taken > (1 - self.min_gain) * alone:
                break
            ratio, slowest = _divergence(split, nbytes)
            first = first or ratio
            if ratio <= DIVERGENCE or _measured(split, nbytes):
                return _Choice(split, "split", ratio, taken, alone)
            rails = [each for each in rails if each[0].rail != slowest.rail]
        return _Choice(whole, "diverges" if first else "no_gain", first, alone, alone)


def _divergence(split: Split, nbytes: int) -> tuple[float, RailOption]:
    """The ratio of the fastest rail's throughput to the slowest one's, and the slowest."""
    rates = [load.bytes(nbytes) / load.option.together(load.bytes(nbytes)) for load in split]
    slowest = min(range(len(split)), key=lambda index: rates[index])
    return max(rates) / rates[slowest], split[slowest].option


def _measured(split: Split, nbytes: int) -> bool:
    return all(load.option.measured(load.bytes(nbytes)) for load in split)


def _ranges(setting: _RailSearch) -> list[RailRange]:
    """Ranges over all sizes: with the least slack for which a plan holds them all.

    Between sizes at which a table's sample is reached all times are straight lines, so a split that serves the sizes
    where its own time or the best one turns serves all between them.
    """
    choose, turns = cache(setting.choose), _turns(setting.rails)
    sizes = sizes_between((option.curve.sizes[-1] for each in setting.rails for option in each), STEPS)

    def within(choice: _Choice, low: int, high: int) -> Iterator[int]:
        own = (round(size / load.share) for load in choice.split for size in load.option.curve.sizes)
        return (nbytes for nbytes in {*turns, *own} if low < nbytes < high)

    for slack in SLACKS:

        def serves(choice: _Choice, nbytes: int, best: _Choice, slack: float = slack) -> bool:
            limit = min((1 + slack) * best.seconds, best.alone)
            return choice.split == best.split or split_seconds(choice.split, nbytes) <= limit

        choices = Choices(choose, lambda choice: choice.kind, serves, within, FINEST)
        found = list(byte_ranges(choices, sorted({*sizes, *turns})))
        if len(found) <= MAX_RANGES:
            break
    else:
        found = list(byte_ranges(choices._replace(finest=math.inf), sizes))
    return [_range(setting, *each) for each in found]


def _turns(rails: Sequence[Sequence[RailOption]]) -> set[int]:
    """The sizes at which the best rail's time, or that of the best split, turns: a sample of some table is reached."""
    every = [option for options in rails for option in options]
    ends = np.array([option.rail.slowdown * time for option in every for time in option.curve.times])
    together = sum(np.max([option.together_bytes(ends) for option in options], axis=0) for options in rails)
    sizes = {*together.astype(int).tolist(), *(size for option in every for size in option.curve.sizes)}
    return sizes - {0}


def _range(setting: _RailSearch, low: int, high: int | None, nbytes: int, choice: _Choice) -> RailRange:
    alone = fastest_rail(setting.rails, nbytes).seconds(nbytes)
    return RailRange(
        min_bytes=low,
        max_bytes=high,
        shares=tuple(
            Share(rail=load.option.rail.name, share=load.share, channels=load.option.channels, cores=load.option.cores)
            for load in choice.split
        ),
        reason=choice.reason,
        ratio=significant(choice.ratio) if choice.ratio else None,
        extrapolated=not _measured(choice.split, nbytes),
        predicted=SplitTimes(
            reference_bytes=nbytes,
            seconds=significant(split_seconds(choice.split, nbytes)),
            single=significant(alone),
            fixed_ratio=significant(fixed_ratio(setting.rails, nbytes)),
            slicing=significant(slicing(setting.rails, nbytes)),
            lower_bound=significant(lower_bound(setting.rails, nbytes)),
        ),
    )


def _named(ranges: tuple[RailRange, ...]) -> tuple[RailRange, ...]:
    """The ranges before the first split are cold; those after it in which no split pays keep their reason."""
    before = itertools.takewhile(lambda each: each.reason != "split", ranges)
    cold = {each.min_bytes for each in before if each.reason == "no_gain"}
    return tuple(each.model_copy(update={"reason": "cold"}) if each.min_bytes in cold else each for each in ranges)
