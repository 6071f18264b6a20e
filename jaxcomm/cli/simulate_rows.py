"""The rows of `jaxcomm simulate`. A row has all schedules' times for one number of ranks, one size and one delay."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import product

from jaxcomm import simulate
from jaxcomm.cli.common.simulated import Simulated
from jaxcomm.plan.specs import build_half
from jaxcomm.plan.values import Plain
from jaxcomm.planner.halves import half_specs
from jaxcomm.planner.schedules import Setting
from jaxcomm.report.words import spec_text
from jaxcomm.schedules import Schedule
from jaxcomm.schedules.halves import Half
from jaxcomm.schedules.schedule import CollectiveKind

_ALL_REDUCES = {
    "ring": "ring",
    "halving_doubling": "halving/doubling",
    "direct": "direct",
    "broadcast": "broadcast",
    "straggler": "straggler",
}


@dataclasses.dataclass(frozen=True)
class SimulatedTimes:
    """Predicted seconds from the late rank's arrival to the end.

    `seconds` has one time per schedule name. The schedule "straggler" has `chunks` chunks: `covered` chunks follow the
    straggler schedule, the others a ring. `plan_s` is None if there is no plan for this number of ranks.
    """

    ranks: int
    bytes: int
    late_s: float
    seconds: dict[str, float]
    lower_bound_s: float
    plan_s: float | None
    plan_schedule: str | None
    chunks: int | None = None
    covered: int | None = None

    def times(self) -> dict[str, float]:
        """The seconds of each column, by the column's name."""
        plan = {} if self.plan_s is None else {"plan": self.plan_s}
        return {**self.seconds, **plan, "lower bound": self.lower_bound_s}


def rows(
    collective: CollectiveKind, given: Simulated, sizes: Sequence[int], delays: Sequence[float], ports: int
) -> Iterator[SimulatedTimes]:
    """Yields a row for each number of ranks, size and delay, nested in this order. Rows are computed lazily."""
    if collective == "all_reduce":
        return _all_reduces(given, sizes, delays, ports)
    return _halves(collective, given, sizes, delays, ports)


def _all_reduces(
    given: Simulated, sizes: Sequence[int], delays: Sequence[float], ports: int
) -> Iterator[SimulatedTimes]:
    for row in simulate.sweep(given.ranks, sizes, delays, given.links, plan=given.planned, ports=ports):
        times = {name: getattr(row, key) for key, name in _ALL_REDUCES.items()}
        yield SimulatedTimes(
            ranks=row.ranks,
            bytes=row.nbytes,
            late_s=row.delay_s,
            seconds={name: seconds for name, seconds in times.items() if seconds is not None},
            lower_bound_s=row.lower_bound,
            plan_s=row.plan,
            plan_schedule=row.plan_kind,
            chunks=row.chunks,
            covered=row.covered,
        )


def _halves(
    collective: Half, given: Simulated, sizes: Sequence[int], delays: Sequence[float], ports: int
) -> Iterator[SimulatedTimes]:
    """The rows of a ReduceScatter or an AllGather. Rows that differ only in the delay have equal times."""
    links, planned = given.links, given.planned
    for n in given.ranks:
        where = links.topology if links.topology and len(links.topology.hosts) == n else None
        setting = Setting(ranks=n, links=dataclasses.replace(links, topology=where), ports=ports, min_gain=0.0)
        made = {spec_text(spec): build_half(spec, collective, n, where) for spec in half_specs(setting)}
        for nbytes, delay in product(sizes, delays):
            plan = None
            if planned and planned.ranks == n:  # without a planned schedule, `collective` runs the direct schedule
                plan = planned.half_for(collective, nbytes) or build_half(Plain(kind="direct"), collective, n)
            yield SimulatedTimes(
                ranks=n,
                bytes=nbytes,
                late_s=delay,
                seconds={name: _seconds(each, nbytes, setting) for name, each in made.items()},
                lower_bound_s=simulate.half_lower_bound(n, nbytes, links.alpha, links.beta, ports, where),
                plan_s=_seconds(plan, nbytes, setting) if plan else None,
                plan_schedule=plan.kind if plan else None,
            )


def _seconds(schedule: Schedule, nbytes: int, setting: Setting) -> float:
    return simulate.phases(schedule, nbytes, *simulate.link_of(schedule, nbytes, setting.links))[1]
