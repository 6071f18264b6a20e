"""The cost of schedules between hosts: the modelled time of their links, multiplied by measured factors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Final

import numpy as np

from jaxcomm.profile.cluster import Cluster
from jaxcomm.profile.timed_schedules import ScheduleSample, TimedSchedules
from jaxcomm.schedules import Schedule
from jaxcomm.simulate.executor_costs import Costs, LinkCosts, TimedCosts

# If a buffer of n bytes has nβ ≥ BOUND_BY_BYTES · ranks · α, links' rates, not latencies, determine all times.
BOUND_BY_BYTES: Final = 10
TINY_S: Final = 1e-9  # seconds, less than the time of any call


def timed_costs(timed: TimedSchedules, ranks: int, links: Cluster, hosts: int) -> TimedCosts:
    """The costs of the timed executor for `ranks` ranks on `hosts` hosts; see `TimedCosts.of`."""
    kind = BetweenHosts if timed.executor == "messages" and hosts > 1 else TimedCosts
    return kind.of(timed, ranks, links)


@dataclass(frozen=True)
class BetweenHosts(TimedCosts):
    """Schedules between hosts take the modelled time of their links, multiplied by a measured factor.

    A factor is measured seconds divided by modelled seconds. A timed schedule has its own factor at each timed size.
    For other schedules the factor is the median of the schedule's kind or, if no schedule of this kind was timed, the
    median of all schedules. Between timed sizes the factor is interpolated. Below the smallest and above the largest
    timed size, the factor of the nearest timed size holds. There is one exception: from a certain size on (see
    BOUND_BY_BYTES), links' rates determine all times. If all timed sizes are smaller, the factor is 1 from that size
    on, because the links were measured with large messages.
    """

    @classmethod
    def modelled(
        cls, timed: TimedSchedules, made: Sequence[Schedule | None], links: Cluster
    ) -> tuple[Costs, dict[int, float]]:
        """Returns the links' model and, by size, the standard deviation of the logarithms of the timed factors."""
        model, found = LinkCosts(links, (timed.late,)), {size: list[float]() for size in timed.sizes}
        for schedule, each in zip(made, timed.schedules, strict=True):
            assert schedule
            for sample in each.samples:
                found[sample.bytes] += np.log(_timed_to_links(model, schedule, sample)).tolist()
        return model, {size: float(np.std(np.array(each) - np.median(each))) for size, each in found.items()}

    @property
    def between_hosts(self) -> bool:
        """True, because links between hosts determine the times."""
        return True

    def phases(self, schedule: Schedule, nbytes: int) -> tuple[float, float]:
        """Implements `Costs.phases`."""
        before, after = self.model.phases(schedule, nbytes)
        together, late = (_factor(nbytes, each) for each in self._of(schedule))
        return max(0.0, together * (before + after) - late * after), late * after

    def reaches(self, nbytes: int) -> bool:
        """True for every size, because the links determine the times beyond the timed sizes."""
        return True

    def _of(self, schedule: Schedule) -> tuple[dict[int, float], dict[int, float]]:
        """Returns a schedule's factors by size, for calls with no late rank and for calls with one."""
        own = {sample.bytes: _timed_to_links(self.model, schedule, sample) for sample in self.samples(schedule) or ()}
        found = {**self._of_kinds[""], **self._of_kinds.get(schedule.kind, {}), **own}
        together, late = ({size: each[column] for size, each in found.items()} for column in (0, 1))
        return self._far | together, self._far | late

    @cached_property
    def _of_kinds(self) -> dict[str, dict[int, tuple[float, float]]]:
        """Median factors of the timed schedules, by kind of schedule and size. The kind "" means all kinds."""
        found: dict[str, dict[int, list[tuple[float, float]]]] = {}
        for schedule, samples in self._tables.items():
            for sample in samples:
                factors = _timed_to_links(self.model, schedule, sample)
                for kind in ("", schedule.kind):
                    found.setdefault(kind, {}).setdefault(sample.bytes, []).append(factors)
        return {
            kind: {size: (median(a for a, _ in each), median(b for _, b in each)) for size, each in by_size.items()}
            for kind, by_size in found.items()
        }

    @cached_property
    def _far(self) -> dict[int, float]:
        """The factor 1 at the size from which links' rates determine all times; empty if a timed size is as large."""
        assert isinstance(self.model, LinkCosts)
        links, ranks = self.model.links, max(schedule.ranks for schedule in self._tables)
        size = math.ceil(BOUND_BY_BYTES * ranks * links.alpha / links.beta) if links.beta else 0
        return {size: 1.0} if size > self.sizes[-1] else {}


def _timed_to_links(model: Costs, schedule: Schedule, sample: ScheduleSample) -> tuple[float, float]:
    """Measured seconds divided by the seconds of the links' model: with no late rank, and with one late rank."""
    known = model.cost(schedule, sample.bytes), model.cost(schedule, sample.bytes, sample.late_by_s)
    together = sample.together_s / max(known[0], TINY_S)
    return together, sample.late_s / max(known[1], TINY_S) if sample.late else together


def _factor(nbytes: int, by_size: Mapping[int, float]) -> float:
    """The factor for a size, interpolated in logarithms.

    Sizes beyond the known ones get the factor of the nearest known size.
    """
    sizes = sorted(by_size)
    return math.exp(np.interp(math.log(max(1, nbytes)), np.log(sizes), np.log([by_size[size] for size in sizes])))
