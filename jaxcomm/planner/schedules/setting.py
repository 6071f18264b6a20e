"""The setting for which schedules are chosen, and the time of a schedule in this setting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, TypeVar, cast

from jaxcomm import schedules, simulate
from jaxcomm.files import Value
from jaxcomm.plan import build
from jaxcomm.plan.executors import Executors
from jaxcomm.plan.solved import SolvedCall
from jaxcomm.plan.timed import timed_spec
from jaxcomm.plan.values import ANY_RANK, Chain, Nccl, Plain, Spec, Stragglers
from jaxcomm.planner.late_ranks import ROLE, LateRanks
from jaxcomm.profile.cluster import Cluster
from jaxcomm.profile.timed_schedules import TriedSchedule
from jaxcomm.schedules import Schedule, Template
from jaxcomm.simulate.executor_costs import Costs, LinkCosts, TimedCosts

ABOUT: Final = 2  # factor by which a size may differ from a trial's bytes for the trial to count


@dataclass(frozen=True)
class Setting:
    """The ranks and links of calls, and the parts that their schedules are built from.

    `links.racks` is empty: racks are part of `links.topology` (see `Profile.network`). `ports` is the number of peers
    that a rank exchanges with at once. `min_gain` is the share of another schedule's time that a schedule must save to
    be taken instead. `template` is needed if a rank is late. `solved` are schedules for the links' topology and the
    late rank. `executors` holds the times of NCCL's own allreduce, if it was timed. `timed` has the costs of the
    executor on which whole schedules were timed; with None, only α and β are known. If `has_given_gain`, the caller
    gave `min_gain`, and the errors of `timed` are ignored. `hosts` is the number of hosts, even if links have no
    topology. `tried` has the trials of schedules that runs have compared with the default one.
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
    tried: Mapping[Spec, Sequence[TriedSchedule]] = field(default_factory=dict)
    _built: dict[Spec, Schedule] = field(init=False, repr=False, compare=False, default_factory=dict)
    _timed: dict[tuple[Spec, int], float] = field(init=False, repr=False, compare=False, default_factory=dict)

    def schedule(self, spec: Spec) -> Schedule:
        """The schedule of a spec. Rank 0 is the late rank if no late rank is known, or if each rank may be late."""
        if spec not in self._built:
            roles = {ANY_RANK: 0, **(self.late.roles or {ROLE: 0})}
            self._built[spec] = build(spec, self.ranks, roles, self.template, self.solved, self.links.topology)
        return self._built[spec]

    def cost(self, spec: Spec, nbytes: int) -> tuple[float, float]:
        """The schedule's seconds before and after its late ranks arrive.

        If the schedule has no late ranks, the rank that arrives last counts as its late rank.
        """
        if isinstance(spec, Nccl):
            return 0.0, self.nccl_seconds(nbytes)
        if self.timed and spec.kind == "lax":
            return 0.0, self.timed.lax_seconds(nbytes)
        return self.costs.phases(self.schedule(spec), nbytes)

    @property
    def costs(self) -> Costs:
        """The costs of the timed executor or, if no executor was timed, the costs of the links."""
        return self.timed or LinkCosts(self.links, self.late.ranks[-1:])

    def is_timed(self, spec: Spec) -> bool:
        """Whether the schedule itself was timed."""
        if self.timed is None or spec.kind in ("nccl", "lax"):
            return False
        return self.timed.samples(self.schedule(spec)) is not None

    def reaches(self, nbytes: int) -> bool:
        """Whether times are known for this size.

        Timed schedules give times up to the largest timed size, and above it if times there grow with the bytes. Links
        give times for all sizes.
        """
        return self.timed is None or self.timed.reaches(nbytes)

    @property
    def runs_by_xla(self) -> bool:
        """Whether XLA's own collectives, on which schedules were timed, run the plan."""
        return self.timed is not None and self.timed.timed.executor == "xla"

    def lower_bound(self, nbytes: int) -> float:
        """Mean seconds after the last late rank's arrival that no schedule of ours can beat, by the links' α and β.

        If an executor was timed, the bound is at most the time of its fastest schedule, because ports may not limit
        that executor.
        """
        links = self.links
        call = self.ranks, nbytes, self.late.window, links.alpha, links.beta, self.ports, links.topology
        timed = self.timed.timed.schedules if self.timed else ()
        least = [self.seconds(timed_spec(each.name), nbytes) for each in timed]
        return min([simulate.lower_bound(*call), *least])

    def least_gain(self, spec: Spec, other: Spec, nbytes: int) -> float:
        """The least share of the time of `other` that `spec` must save.

        This is `min_gain`. For timed schedules the share is at least their error, except if the caller gave `min_gain`.
        """
        if not self.timed or spec.kind in ("nccl", "lax") or self.has_given_gain:
            return self.min_gain
        than = None if other.kind == "lax" else self.schedule(other)
        return max(self.min_gain, self.timed.margin(self.schedule(spec), nbytes, than))

    def gains(self, rival: Spec, choice: Spec, nbytes: int) -> bool:
        """Whether `rival` saves enough of the time of `choice` to be taken instead.

        Between hosts a predicted saving of `min_gain` is enough, because links and timed calls are independent
        evidence, and the run tries the schedule beside the default. On shared memory only timed calls are evidence. The
        saving must then exceed the measurement error of timed calls, also at the timed sizes next to this one. A gain
        at a single timed size counts as chance. Beyond the largest timed size a gain counts only if times grow with the
        bytes at the largest timed sizes.
        """

        def saves(size: int, least: float) -> bool:
            return self.seconds(rival, size) < (1 - least) * self.seconds(choice, size)

        if not self.timed or self.timed.between_hosts:
            return saves(nbytes, self.min_gain)

        def is_clear(size: int) -> bool:
            return saves(size, self.least_gain(rival, choice, size))

        if not is_clear(nbytes):
            return False
        if not self.reaches(nbytes):
            return False
        about = self.timed.about(nbytes)
        return all(map(is_clear, about)) and (len(about) > 1 or any(map(is_clear, self.timed.beside(about[0]))))

    def nccl_seconds(self, nbytes: int) -> float:
        """Seconds of NCCL's own allreduce; infinite if it was not timed."""
        return self.executors.nccl_seconds(nbytes) if self.executors and self.executors.nccl else math.inf

    def seconds(self, spec: Spec, nbytes: int) -> float:
        """Mean seconds from the last late rank's arrival on."""
        if (spec, nbytes) not in self._timed:
            self._timed[spec, nbytes] = self._seconds(spec, nbytes)
        return self._timed[spec, nbytes]

    def trial(self, spec: Spec, nbytes: int) -> TriedSchedule | None:
        """The run's trial of the schedule at the size nearest to this one; None if no size is within factor `ABOUT`."""
        found = self.tried.get(spec, ())
        about = [each for each in found if each.bytes <= ABOUT * nbytes and nbytes <= ABOUT * each.bytes]
        return min(about, key=lambda each: abs(math.log(each.bytes / max(1, nbytes))), default=None)

    @property
    def defaults(self) -> list[Spec]:
        """The schedules that run without a plan.

        On XLA's collectives this is `lax.psum`. On one host it is direct. Between hosts it is direct or ring,
        depending on the bytes.
        """
        kinds = ("lax",) if self.runs_by_xla else ("direct", "ring") if self.hosts > 1 else ("direct",)
        return [spec_of(Plain, kind=kind) for kind in kinds]

    def _seconds(self, spec: Spec, nbytes: int) -> float:
        others = [each for each in self.defaults if each != spec]  # in a trial, `spec` alternated with one of these
        if others and (tried := self.trial(spec, nbytes)):
            return tried.ratio * min(self._untried_seconds(each, nbytes) for each in others)
        return self._untried_seconds(spec, nbytes)

    def _untried_seconds(self, spec: Spec, nbytes: int) -> float:
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
        """The phases' `times`, scaled so that their sum is the time by the executor's model, if a model was fitted."""
        total = sum(times)
        if not self.timed or not total:
            return [*times]
        scale = self.timed.cost(schedule, nbytes) / total
        return [seconds * scale for seconds in times]


S = TypeVar("S", bound=Value)


def spec_of(kind: type[S], /, **fields: str | int | tuple[str, ...]) -> S:
    """The spec of a kind with these fields.

    Equal calls return the same object, so that the look-ups at every size need not compare fields.
    """
    return cast(S, _spec(kind, **fields))


@lru_cache(maxsize=4096)
def _spec(kind: type[Value], /, **fields: str | int | tuple[str, ...]) -> Value:
    return kind.model_validate(fields)


@lru_cache(maxsize=4096)
def _schedule(kind: str, ranks: int, late: int, chunks: int) -> Schedule:
    """A schedule for `late` late ranks. The rounds and volumes of its phases do not depend on which ranks are late."""
    make = schedules.stragglers if kind == "stragglers" else schedules.chain
    return make(ranks, range(late), chunks)
