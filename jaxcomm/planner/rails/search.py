"""How a buffer of any size is split over unlike rails: by measured tables, and not at all where that would not pay.

Source: "Nezha: Breaking Multi-Rail Network Barriers for Distributed DNN Training", sections 2.3 and 4.3.
Nezha searches threshold and shares by gradient descent while it runs; here they follow from the tables before.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from jaxcomm.plan.rail_shares import Member, RailRange, Rails, Reason, Share, SplitTimes
from jaxcomm.planner.byte_ranges import TOLERANCE, common_choice, sizes_between
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
FINEST: Final = 1.01  # to this ratio it is known where splitting begins or ends


def decide(profile: Profile, min_gain: float = 0.02) -> Rails | None:
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

    `limit` are the seconds that another split may take to serve this size as well.
    """

    split: Split
    reason: Reason
    ratio: float | None
    limit: float

    @property
    def kind(self) -> tuple[Reason, list[str]]:
        """The reason and the rails; where they change, a range ends."""
        return self.reason, [load.option.rail.name for load in self.split]


class _RailSearch(NamedTuple):
    rails: Sequence[Sequence[RailOption]]
    cores: int | None
    min_gain: float

    def choose(self, nbytes: int) -> _Choice:
        """The split for buffers of so many bytes."""
        best = fastest_rail(self.rails, nbytes)
        alone, limit = (Load(best, 1.0),), best.seconds(nbytes)
        if len(self.rails) == 1:
            return _Choice(alone, "only_rail", None, limit)
        rails, first = self.rails, None
        while split := best_split(rails, nbytes, self.cores):
            taken = split_seconds(split, nbytes)
            if taken > (1 - self.min_gain) * limit:
                break
            ratio, slowest = _divergence(split, nbytes)
            first = first or ratio
            if ratio <= DIVERGENCE or _measured(split, nbytes):
                return _Choice(split, "split", ratio, min(TOLERANCE * taken, limit))
            rails = [each for each in rails if each[0].rail != slowest.rail]
        return _Choice(alone, "diverges" if first else "no_gain", first, limit)


def _divergence(split: Split, nbytes: int) -> tuple[float, RailOption]:
    """How many times the throughput of the slowest rail the fastest one has, and the slowest."""
    rates = [load.bytes(nbytes) / load.option.together(load.bytes(nbytes)) for load in split]
    slowest = min(range(len(split)), key=lambda index: rates[index])
    return max(rates) / rates[slowest], split[slowest].option


def _measured(split: Split, nbytes: int) -> bool:
    return all(load.option.measured(load.bytes(nbytes)) for load in split)


def _ranges(setting: _RailSearch) -> Iterator[RailRange]:
    """Ranges from 0 on: each goes as far as one split serves all sizes looked at."""
    sizes = sizes_between((option.curve.sizes[-1] for each in setting.rails for option in each), STEPS)
    choices = [setting.choose(nbytes) for nbytes in sizes]
    low = first = 0
    best = 0
    for last in range(1, len(sizes) + 1):
        ended = last == len(sizes)
        if not ended and (index := _common(sizes[first : last + 1], choices[first : last + 1])) is not None:
            best = first + index
            continue
        end = None if ended else _end(setting, sizes[last - 1], sizes[last], choices[last - 1], choices[last])
        yield _range(setting, low, end, sizes[best], choices[best])
        if end is not None:
            low, first, best = end + 1, last, last


def _common(sizes: Sequence[int], choices: Sequence[_Choice]) -> int | None:
    """The index of a choice whose split takes no longer for any of the sizes than the limit there."""
    if any(choice.kind != choices[0].kind for choice in choices):
        return None

    def serves(choice: _Choice, nbytes: int, best: _Choice) -> bool:
        return choice.split == best.split or split_seconds(choice.split, nbytes) <= best.limit

    return common_choice(sizes, choices, serves)


def _end(setting: _RailSearch, low: int, high: int, before: _Choice, after: _Choice) -> int:
    """The last size of a range whose next one begins between two sizes: where the kind changes, to 1 %."""
    if before.kind == after.kind:
        return high - 1
    while high > FINEST * low and high - low > 1:
        middle = math.isqrt(low * high)
        low, high = (middle, high) if setting.choose(middle).kind == before.kind else (low, middle)
    return high - 1


def _range(setting: _RailSearch, low: int, high: int | None, nbytes: int, choice: _Choice) -> RailRange:
    alone = fastest_rail(setting.rails, nbytes).seconds(nbytes)
    return RailRange(
        min_bytes=low,
        max_bytes=high,
        shares=tuple(
            Share(
                rail=load.option.rail.name,
                share=load.share,
                channels=load.option.channels,
                cores=load.option.cores,
            )
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
