"""The setting that schedules are chosen for, and a schedule's time in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar, cast

from jaxcomm import schedules, simulate
from jaxcomm.files import Value
from jaxcomm.plan import build
from jaxcomm.plan.executors import Executors
from jaxcomm.plan.solved import SolvedCall
from jaxcomm.plan.timed import timed_spec
from jaxcomm.plan.values import ANY_RANK, Chain, Nccl, Spec, Stragglers
from jaxcomm.planner.late_ranks import ROLE, LateRanks
from jaxcomm.profile.cluster import Cluster
from jaxcomm.schedules import Schedule, Template
from jaxcomm.simulate.executor_costs import Costs, LinkCosts, TimedCosts


@dataclass(frozen=True)
class Setting:
    """The ranks and links of calls, and the parts that their schedules are built from.

    `links` have no racks of their own: slow uplinks count as hosts' NICs (`Profile.network`). `ports` are the peers
    that a rank exchanges with at once. `min_gain` is what a schedule must save to count on a delay. `template` is
    needed where somebody is late. `solved` are schedules for the links' topology and the late rank. `executors` holds
    the times of NCCL's own allreduce, if it was timed. `timed` are the costs of the executor on which whole schedules
    were timed; None: α and β are all that is known. With `has_given_gain` its errors do not count beside `min_gain`.
    `hosts` is how many hosts the ranks are on, where that makes no difference to links.
    """

    ranks: int
    links: Cluster
    ports: int
    min_gain: float
    late: LateRanks = field(default_factory=LateRanks)
    template: Template | None = None
    solved: tuple[SolvedCall, ...] = ()
    executors: Executors | None = None
    timed: TimedCosts | None = None
    has_given_gain: bool = False
    hosts: int = 1
    _built: dict[Spec, Schedule] = field(init=False, repr=False, compare=False, default_factory=dict)
    _timed: dict[tuple[Spec, int], float] = field(init=False, repr=False, compare=False, default_factory=dict)

    def schedule(self, spec: Spec) -> Schedule:
        """The schedule of a spec, for some late rank where none is known to be late, or any may be."""
        if spec not in self._built:
            roles = {ANY_RANK: 0, **(self.late.roles or {ROLE: 0})}
            self._built[spec] = build(spec, self.ranks, roles, self.template, self.solved, self.links.topology)
        return self._built[spec]

    def cost(self, spec: Spec, nbytes: int) -> tuple[float, float]:
        """Seconds before and after the arrival of the late ranks: of those that the schedule waits for, or the last."""
        if isinstance(spec, Nccl):
            return 0.0, self.nccl_seconds(nbytes)
        if self.timed and spec.kind == "lax":
            return 0.0, self.timed.lax_seconds(nbytes)
        return self.costs.phases(self.schedule(spec), nbytes)

    @property
    def costs(self) -> Costs:
        """The costs of the executor that was timed, or else of the links."""
        return self.timed or LinkCosts(self.links, self.late.ranks[-1:])

    def is_timed(self, spec: Spec) -> bool:
        """Whether the schedule itself was timed."""
        return self.timed is not None and not isinstance(spec, Nccl) and self.timed.is_timed(self.schedule(spec))

    def reaches(self, nbytes: int) -> bool:
        """Whether times are known for this size: by links for all, by timed schedules not far beyond."""
        return self.timed is None or self.timed.reaches(nbytes)

    @property
    def runs_by_xla(self) -> bool:
        """Whether XLA's own collectives, on which schedules were timed, run the plan."""
        return self.timed is not None and self.timed.timed.executor == "xla"

    def lower_bound(self, nbytes: int) -> float:
        """Mean seconds after the last late rank's arrival that no schedule of ours can beat, by the links' α and β.

        If an executor was timed, none of the timed schedules takes less: it may have no ports that bound it.
        """
        links = self.links
        call = self.ranks, nbytes, self.late.window, links.alpha, links.beta, self.ports, links.topology
        timed = self.timed.timed.schedules if self.timed else ()
        least = [self.seconds(timed_spec(each.kind, each.chunks), nbytes) for each in timed]
        return min([simulate.lower_bound(*call), *least])

    def least_gain(self, spec: Spec, other: Spec, nbytes: int) -> float:
        """The share of another's time that a schedule must save: `min_gain`, or the error of timed schedules."""
        if not self.timed or spec.kind in ("nccl", "lax") or self.has_given_gain:
            return self.min_gain
        than = None if other.kind == "lax" else self.schedule(other)
        return max(self.min_gain, self.timed.margin(self.schedule(spec), nbytes, than))

    def gains(self, rival: Spec, choice: Spec, nbytes: int) -> bool:
        """Whether a schedule saves enough of another's time to be taken in its place.

        On an executor that was timed it must do so at the timed sizes next to this one, too: between them nothing was.
        A gain at one timed size alone is taken for chance, also by sizes beyond it; where times do not yet grow with
        the bytes there, larger sizes gain nothing.
        """

        def saves(size: int) -> bool:
            least = self.least_gain(rival, choice, size)
            return self.seconds(rival, size) < (1 - least) * self.seconds(choice, size)

        if not self.timed or not saves(nbytes):
            return saves(nbytes)
        if not self.reaches(nbytes):
            return False
        about = self.timed.about(nbytes)
        return all(map(saves, about)) and (len(about) > 1 or any(map(saves, self.timed.beside(about[0]))))

    def nccl_seconds(self, nbytes: int) -> float:
        """Seconds of NCCL's own allreduce; infinite if it was not timed."""
        return self.executors.nccl_seconds(nbytes) if self.executors and self.executors.nccl else math.inf

    def seconds(self, spec: Spec, nbytes: int) -> float:
        """Mean seconds from the last late rank's arrival on."""
        if (spec, nbytes) not in self._timed:
            self._timed[spec, nbytes] = self._seconds(spec, nbytes)
        return self._timed[spec, nbytes]

    def _seconds(self, spec: Spec, nbytes: int) -> float:
        if self.links.topology and not isinstance(spec, Nccl) and not self.is_timed(spec):
            schedule = self.schedule(spec)
            alpha, beta, topology = simulate.link_of(schedule, nbytes, self.links)
            assert topology
            stages = simulate.stage_seconds(schedule, nbytes, alpha, beta, topology, self.late.ranks)
            return simulate.staggered(self._as_modelled(stages, schedule, nbytes), self.late.arrivals)
        if isinstance(spec, Stragglers | Chain):
            schedule = _schedule(spec.kind, self.ranks, len(spec.late), spec.chunks)
            times = simulate.phase_seconds(schedule, nbytes, *simulate.link_of(schedule, nbytes, self.links))
            fitted = self._as_modelled(times, schedule, nbytes)
            needed = range(-1 - len(spec.late), 0) if isinstance(spec, Chain) else (-1 - len(spec.late), -1)
            return simulate.staggered(fitted, self.late.releases[list(needed)])
        before, after = self.cost(spec, nbytes)
        return float(self.late.delays.exposed(before)) + after

    def _as_modelled(self, times: Sequence[float], schedule: Schedule, nbytes: int) -> list[float]:
        """The links' times of phases, which together take what the executor's model says, where that was fitted; on
        links of hosts no less than these take."""
        total = sum(times)
        if not self.timed or not total:
            return [*times]
        scale = self.timed.model.cost(schedule, nbytes) / total
        return [seconds * (max(1.0, scale) if self.links.topology else scale) for seconds in times]


S = TypeVar("S", bound=Value)


def spec_of(kind: type[S], /, **fields: str | int | tuple[str, ...]) -> S:
    """The spec of a kind with these fields: one object however often it is asked for, so that it is found without
    comparing fields where specs are looked up, which is for every size."""
    return cast(S, _spec(kind, **fields))


@lru_cache(maxsize=4096)
def _spec(kind: type[Value], /, **fields: str | int | tuple[str, ...]) -> Value:
    return kind.model_validate(fields)


@lru_cache(maxsize=4096)
def _schedule(kind: str, ranks: int, late: int, chunks: int) -> Schedule:
    """The schedule for these numbers; which ranks are late changes nothing in its phases' rounds and volumes."""
    make = schedules.stragglers if kind == "stragglers" else schedules.chain
    return make(ranks, range(late), chunks)
