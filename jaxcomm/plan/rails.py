"""How a plan splits a buffer over rails, by byte range, and the times of other splits for comparison."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from typing import Annotated, Final, Literal, Self

import pydantic
from pydantic import Field

from jaxcomm.ffi.shares import PlanRail, PlanRails, SharesFrom, in_units
from jaxcomm.files import Value
from jaxcomm.plan.values import Count, Number, Seconds
from jaxcomm.profile.racks_and_rails import RailName, Rate

MAX_RANGES: Final = 256
TOLERANCE: Final = 1e-9  # absolute tolerance for the sum of a range's shares
ROUNDED: Final = 1e-6  # relative tolerance, because stored numbers are rounded

Name = Annotated[str, Field(min_length=1, max_length=256)]
Portion = Annotated[float, Field(ge=0, le=1e6, strict=True, allow_inf_nan=False)]
Positive = Annotated[int, Field(ge=1, le=2**31, strict=True)]
Ratio = Annotated[float, Field(ge=1, le=1e30, strict=True, allow_inf_nan=False)]
Reason = Literal["only_rail", "cold", "split", "diverges", "no_gain"]


class Member(Value):
    """A rail that the plan may use, and the bytes per second of a large all-reduce on it alone."""

    name: RailName
    transport: Name
    bytes_per_s: Rate


class Share(Value):
    """One rail's share of a buffer, its number of parallel connections, and its CPU cores (null: not measured)."""

    rail: RailName
    share: Portion
    channels: Annotated[int, Field(ge=1, le=64, strict=True)] = 1
    cores: Positive | None = None


class SplitTimes(Value):
    """Predicted seconds of an allreduce of `reference_bytes` bytes, from the rails' measured tables.

    `seconds` is the time with the range's shares, and `single` the time on the best rail alone. `fixed_ratio` is the
    time with shares in proportion to the rails' nominal bandwidths (as in MRIB). `slicing` is the time with slices,
    each of which goes to the next idle rail (as in MPTCP). `lower_bound` is the time if rails did not slow each other
    down and every share ran at its rail's best rate.
    """

    reference_bytes: Count
    seconds: Seconds
    single: Seconds
    fixed_ratio: Seconds
    slicing: Seconds
    lower_bound: Seconds


class RailRange(Value):
    """The split of calls of `min_bytes` to `max_bytes` bytes, both included. A `max_bytes` of null means no limit.

    `ratio` is the highest throughput of a rail in the best split, divided by the lowest (null: no split is better than
    one rail). `extrapolated` says whether some rail, at the reference size, carries more than twice the largest size
    that was measured on this rail. Reasons:

      only_rail  there is no other rail
      cold       below the threshold: one rail carries all, because no split saves enough
      split      the shares save at least `min_gain` of the best rail's time
      diverges   a split saves enough, but its `ratio` exceeds `divergence`, and one of its shares would be extrapolated
      no_gain    above the threshold, but no split saves enough
    """

    min_bytes: Count
    max_bytes: Count | None
    shares: Annotated[tuple[Share, ...], Field(fail_fast=True, min_length=1, max_length=64)]
    reason: Reason
    ratio: Ratio | None
    extrapolated: Annotated[bool, Field(strict=True)]
    predicted: SplitTimes


class Rails(Value):
    """The rails of a plan, and how a buffer of any size is split over them.

    Below `threshold_bytes` bytes one rail carries the whole buffer (null: at every size). The throughputs of a split's
    rails differ by at most the factor `divergence`, unless the sizes measured on each rail cover the rail's share.
    """

    members: Annotated[tuple[Member, ...], Field(fail_fast=True, min_length=1, max_length=64)]
    threshold_bytes: Count | None
    divergence: Number
    min_gain: Seconds
    cpu_cores: Positive | None
    ranges: Annotated[tuple[RailRange, ...], Field(fail_fast=True, min_length=1, max_length=MAX_RANGES)]

    def range_for(self, nbytes: int) -> RailRange:
        """The range that a buffer of `nbytes` belongs to."""
        return self.ranges[bisect.bisect_right(self.ranges, nbytes, key=lambda each: each.min_bytes) - 1]

    def split_for(self, nbytes: int) -> tuple[Share, ...]:
        """The shares of a buffer of `nbytes`."""
        return self.range_for(nbytes).shares

    def planned(self) -> PlanRails:
        """The rails and the shares of all ranges, in the form used to split messages over rails."""
        found = []
        for each in self.ranges:
            units = in_units([share.share for share in each.shares])
            by_rail = {share.rail: unit for share, unit in zip(each.shares, units, strict=True)}
            found.append(SharesFrom(each.min_bytes, by_rail))
        members = (PlanRail(each.name, each.transport, each.bytes_per_s) for each in self.members)
        return PlanRails(tuple(members), tuple(found))

    @pydantic.model_validator(mode="after")
    def _covers_every_size(self) -> Self:
        low = 0
        for i, each in enumerate(self.ranges):
            last = i + 1 == len(self.ranges)
            if each.min_bytes != low:
                raise ValueError(f"rails.ranges[{i}].min_bytes is {each.min_bytes}; it must be {low}, with no gap")
            if last != (each.max_bytes is None):
                raise ValueError(
                    f"rails.ranges[{i}].max_bytes is {each.max_bytes}; the last, and only it, has no limit"
                )
            if each.max_bytes is not None:
                if each.max_bytes < low:
                    raise ValueError(f"rails.ranges[{i}].max_bytes is {each.max_bytes}, below its min_bytes {low}")
                low = each.max_bytes + 1
        return self

    @pydantic.model_validator(mode="after")
    def _shares_are_whole(self) -> Self:
        known = Counter(member.name for member in self.members)
        if twice := next((name for name, count in known.items() if count > 1), None):
            raise ValueError(f'rails.members has two of the name "{twice}"; names must differ')
        for i, each in enumerate(self.ranges):
            seen: set[str] = set()
            for j, share in enumerate(each.shares):
                where = f"rails.ranges[{i}].shares[{j}]"
                if share.rail not in known:
                    names = ", ".join(known)
                    raise ValueError(
                        f'{where}.rail is "{share.rail}", which is not a rail of this plan; its rails are: {names}'
                    )
                if share.rail in seen:
                    raise ValueError(f'{where}.rail is "{share.rail}", which has a share already')
                seen.add(share.rail)
            total = math.fsum(share.share for share in each.shares)
            if abs(total - 1) > TOLERANCE:
                j = max(range(len(each.shares)), key=lambda index: each.shares[index].share)
                raise ValueError(
                    f"rails.ranges[{i}].shares[{j}].share is {each.shares[j].share:g}; shares of one byte range must "
                    f"sum to 1 (they sum to {total:.9g})"
                )
            cores = sum(share.cores or 0 for share in each.shares)
            if self.cpu_cores is not None and cores > self.cpu_cores:
                raise ValueError(f"rails.ranges[{i}].shares take {cores} cores; rails.cpu_cores is {self.cpu_cores}")
        return self

    @pydantic.model_validator(mode="after")
    def _reasons_fit(self) -> Self:
        split = [each.min_bytes for each in self.ranges if each.reason == "split"]
        for i, each in enumerate(self.ranges):
            if (each.reason == "split") != (len(each.shares) > 1):
                raise ValueError(f'rails.ranges[{i}].reason is "{each.reason}" for {len(each.shares)} shares')
        if self.threshold_bytes != (split[0] if split else None):
            first = split[0] if split else "null"
            raise ValueError(f"rails.threshold_bytes is {self.threshold_bytes}; the ranges split from {first} on")
        return self

    @pydantic.model_validator(mode="after")
    def _predictions_fit(self) -> Self:
        for i, each in enumerate(self.ranges):
            where, found = f"rails.ranges[{i}].predicted", each.predicted
            if not each.min_bytes <= found.reference_bytes <= (each.max_bytes or math.inf):
                raise ValueError(f"{where}.reference_bytes is {found.reference_bytes}, outside of its range")
            if found.lower_bound > found.seconds * (1 + ROUNDED):
                raise ValueError(f"{where}.seconds is {found.seconds:g}, below its lower_bound, {found.lower_bound:g}")
            most = found.single * (1 - self.min_gain if each.reason == "split" else 1)
            if found.seconds > most * (1 + ROUNDED):
                raise ValueError(
                    f'{where}.seconds is {found.seconds:g}; with the reason "{each.reason}" and a min_gain of '
                    f"{self.min_gain:g} it is at most {most:g}"
                )
        return self
