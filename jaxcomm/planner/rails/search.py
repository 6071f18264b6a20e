"""Decides, from measured tables, how buffers of each size are split over unequal rails.

A split must save at least the share `min_gain` of the time of the best single rail.

Source: "Nezha: Breaking Multi-Rail Network Barriers for Distributed DNN Training", sections 2.3 and 4.3.
Nezha finds the threshold and the shares by gradient descent at run time. Here the tables give both in advance.
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
from jaxcomm.profile import Profile, Rail

DIVERGENCE: Final = 5.0  # τ of the paper's equation 3
STEPS: Final = 2  # sizes tried per octave
# Slacks, tried in this order. A slack is the share by which a split may take longer than the best split with rounded
# shares. With the first slack, a split takes at most 2 % longer than the best split with unrounded shares.
SLACKS: Final = (0.016, 0.04, 0.08, 0.16)
# If a split saves less than this share, the best single rail's time is within the first slack of the split's time.
MIN_GAIN: Final = round(SLACKS[0] / (1 + SLACKS[0]), 6)
FINEST: Final = 1.001  # a range is not divided further if its last size is less than this multiple of its first size


def decide(profile: Profile, min_gain: float = MIN_GAIN) -> Rails | None:
    """How buffers are split over the profile's rails.

    For each size `best_split` finds the shares with which the last rail finishes earliest. The split is taken if it
    saves at least `min_gain` of the best single rail's time and its rails do not diverge. Rails diverge if their
    throughputs (a share's bytes divided by its predicted time) differ by more than a factor of τ = 5 (equation 3),
    unless every share is within its rail's `reach` (see `RailOption`). If a split diverges, two other splits are tried:
    one without its slowest rail, and one in which all rails stay within their reach.

    Args:
      profile: with or without rails.
      min_gain: the minimum saving that is worth a split, as a share of the best single rail's time.

    Returns:
      Ranges over all sizes, or None if the profile has no rails.

    Raises:
      ProfileError: a rail's table holds a time of 0, or a rail needs more CPU cores than there are.
    """
    if not profile.rails:
        return None
    rails = [options(profile, rail) for rail in profile.rails]
    setting = RailSearch(rails, profile.cpu_cores, min_gain)
    ranges = _named(tuple(_ranges(setting)))
    return Rails(
        members=tuple(
            Member(name=rail.name, transport=rail.transport, bytes_per_s=significant(_rate(rail)))
            for rail in profile.rails
        ),
        threshold_bytes=next((each.min_bytes for each in ranges if each.reason == "split"), None),
        divergence=DIVERGENCE,
        min_gain=min_gain,
        cpu_cores=profile.cpu_cores,
        ranges=ranges,
    )


class RailChoice(NamedTuple):
    """The split for a size, and its reason.

    `ratio` is the highest throughput of a rail in the split, divided by the lowest. If the reason is "diverges",
    `ratio` is for the best split, which was refused. `seconds` is the time of the split, and `alone` is the time of the
    best single rail.
    """

    split: Split
    reason: Reason
    ratio: float | None
    seconds: float
    alone: float

    @property
    def kind(self) -> object:
        """The properties that a range's sizes share: reason, rails and, for one rail, its connections and cores."""
        rails = tuple(load.option.rail.name for load in self.split)
        return self.reason, rails, self.split[0].option.use if len(rails) == 1 else None


class RailSearch(NamedTuple):
    """The rails' options, the cores that all rails may use together, and the least saving that is worth a split."""

    rails: Sequence[Sequence[RailOption]]
    cores: int | None
    min_gain: float

    def choose(self, nbytes: int) -> RailChoice:
        """The split for buffers of `nbytes`."""
        best = fastest_rail(self.rails, nbytes)
        whole, alone = (Load(best, 1.0),), best.seconds(nbytes)
        if len(self.rails) == 1:
            return RailChoice(whole, "only_rail", None, alone, alone)
        rails, first = self.rails, None
        while (split := best_split(rails, nbytes, self.cores)) and self._gains(split, nbytes, alone):
            ratio, slowest = _divergence(split, nbytes)
            if ratio <= DIVERGENCE or _within_reach(split, nbytes):
                break
            first = first or ratio
            rails = [each for each in rails if each[0].rail != slowest.rail]
        splits = [split, best_split(self.rails, nbytes, self.cores, within_reach=True) if first else None]
        gaining = [each for each in splits if each and self._gains(each, nbytes, alone)]
        if not gaining:
            return RailChoice(whole, "diverges" if first else "no_gain", first, alone, alone)
        found = min(gaining, key=lambda each: split_seconds(each, nbytes))
        return RailChoice(found, "split", _divergence(found, nbytes)[0], split_seconds(found, nbytes), alone)

    def _gains(self, split: Split, nbytes: int, alone: float) -> bool:
        return split_seconds(split, nbytes) <= (1 - self.min_gain) * alone


def _divergence(split: Split, nbytes: int) -> tuple[float, RailOption]:
    """The fastest rail's throughput divided by the slowest rail's throughput, and the slowest rail's option."""
    rates = [load.bytes(nbytes) / load.option.together(load.bytes(nbytes)) for load in split]
    slowest = min(range(len(split)), key=lambda index: rates[index])
    return max(rates) / rates[slowest], split[slowest].option


def _within_reach(split: Split, nbytes: int) -> bool:
    return all(load.bytes(nbytes) <= load.option.reach for load in split)


def _ranges(setting: RailSearch) -> list[RailRange]:
    """Ranges over all sizes, with the least slack that gives no more ranges than a plan can hold.

    A split's time is linear between the sizes at which one of its rails reaches a sample of its table. These sizes are
    the turns of the split. If a split is fast enough at its own turns and at the turns of the best split, it is
    therefore also fast enough at all sizes between them.
    """
    choose, turns = cache(setting.choose), _turns(setting.rails)
    sizes = sizes_between((option.curve.sizes[-1] for each in setting.rails for option in each), STEPS)

    def within(choice: RailChoice, low: int, high: int) -> Iterator[int]:
        own = (round(size / load.share) for load in choice.split for size in load.option.curve.sizes)
        return (nbytes for nbytes in {*turns, *own} if low < nbytes < high)

    for slack in SLACKS:

        def serves(choice: RailChoice, nbytes: int, best: RailChoice, slack: float = slack) -> bool:
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
    """The sizes at which the best rail's or the best split's time, as a function of the size, changes its slope.

    At these sizes a rail reaches a sample of its table.
    """
    every = [option for options in rails for option in options]
    ends = np.array([option.rail.slowdown * time for option in every for time in option.curve.times])
    together = sum(np.max([option.together_bytes(ends) for option in options], axis=0) for options in rails)
    sizes = {*together.astype(int).tolist(), *(size for option in every for size in option.curve.sizes)}
    return sizes - {0}


def _range(setting: RailSearch, low: int, high: int | None, nbytes: int, choice: RailChoice) -> RailRange:
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
        extrapolated=not _within_reach(choice.split, nbytes),
        predicted=SplitTimes(
            reference_bytes=nbytes,
            seconds=significant(split_seconds(choice.split, nbytes)),
            single=significant(alone),
            fixed_ratio=significant(fixed_ratio(setting.rails, nbytes)),
            slicing=significant(slicing(setting.rails, nbytes)),
            lower_bound=significant(lower_bound(setting.rails, nbytes)),
        ),
    )


def _rate(rail: Rail) -> float:
    return rail.latency[-1].bytes / rail.latency[-1].seconds


def _named(ranges: tuple[RailRange, ...]) -> tuple[RailRange, ...]:
    """The ranges, with the reason "no_gain" changed to "cold" before the first split."""
    before = itertools.takewhile(lambda each: each.reason != "split", ranges)
    cold = {each.min_bytes for each in before if each.reason == "no_gain"}
    return tuple(each.model_copy(update={"reason": "cold"}) if each.min_bytes in cold else each for each in ranges)
