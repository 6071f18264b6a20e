"""The cost of a schedule on the executor that runs it: one interface, and a model per executor.

    costs = TimedCosts.of(timed, ranks, links)
    costs.cost(schedule, nbytes, lateness)      # seconds from the late rank's arrival to the end

An executor's model describes the work for a schedule by amounts of several terms (`executor_work`). Each term's unit
cost is fitted to whole schedules that were timed on the executor (`TermCosts`). If a schedule was timed itself, its
times are interpolated between sizes instead (`TimedCosts`). Without timed schedules, only α and β are known
(`LinkCosts`).
"""

from __future__ import annotations

import bisect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from jaxcomm import schedules
from jaxcomm.errors import ProfileError, load_extra
from jaxcomm.plan.specs import build
from jaxcomm.plan.timed import ROLE, timed_spec
from jaxcomm.profile.cluster import Cluster
from jaxcomm.profile.timed_schedules import WHOLE, ScheduleSample, TimedSchedule, TimedSchedules
from jaxcomm.schedules import Schedule
from jaxcomm.simulate.executor_work import Work, link_seconds, work_of
from jaxcomm.simulate.turns import error_of, turn_ratios

EXPECTED: Final = 0.9  # the model expects a gain if it predicts less than this share of another schedule's time
PROPORTIONAL: Final = 0.75  # times are proportional to bytes if their ratio is at least this share of the sizes' ratio

Floats = NDArray[np.float64]


class Costs(ABC):
    """Seconds of schedules on one executor."""

    @abstractmethod
    def phases(self, schedule: Schedule, nbytes: int) -> tuple[float, float]:
        """Seconds of the work that can be done before the late ranks arrive, and seconds of all other work."""

    def cost(self, schedule: Schedule, nbytes: int, lateness: float = 0.0) -> float:
        """Seconds from the arrival of a schedule's late ranks to the end.

        Args:
          schedule: any schedule.
          nbytes: size of one rank's buffer.
          lateness: seconds by which the late ranks arrive after the others.
        """
        before, after = self.phases(schedule, nbytes)
        return max(0.0, before - lateness) + after


@dataclass(frozen=True)
class LinkCosts(Costs):
    """A round that moves b bytes takes α + bβ. Where links differ, messages are timed one by one instead (`clock`).

    If links differ, even a schedule that names no late rank does what it can before the `late` ranks arrive.
    """

    links: Cluster
    late: tuple[int, ...] = ()

    def phases(self, schedule: Schedule, nbytes: int) -> tuple[float, float]:
        """Implements `Costs.phases`."""
        return link_seconds(schedule, nbytes, self.links, self.late)


@dataclass(frozen=True)
class TermCosts(Costs):
    """The sum of the terms of an executor's work, each multiplied by its unit cost."""

    work: Work
    units: Floats

    def phases(self, schedule: Schedule, nbytes: int) -> tuple[float, float]:
        """Implements `Costs.phases`."""
        before, after = self.work(schedule, nbytes) @ self.units
        return float(before), float(after)


@dataclass(frozen=True)
class TimedCosts(Costs):
    """Costs of schedules: interpolated between sizes if the schedule was timed, otherwise from the executor's model.

    The model is fitted to the timed schedules that consist of rounds.

    Attributes:
      timed: the measurements.
      made: the schedules of `timed`, in the same order; None for `lax.psum`.
      model: costs of all other schedules.
      errors: by size, the root mean square of log(modelled time / measured time). The modelled time of a schedule is
        from a fit without this schedule.
      any_rank: whether times are the same for every late rank, because links have one rate.
    """

    timed: TimedSchedules
    made: tuple[Schedule | None, ...]
    model: Costs
    errors: Mapping[int, float]
    any_rank: bool

    @classmethod
    def of(cls, timed: TimedSchedules, ranks: int, links: Cluster) -> Self:
        """The costs of the executor that was timed.

        Args:
          timed: the measurements of one executor.
          ranks: number of ranks.
          links: the links, which may differ.

        Raises:
          ProfileError: several executors were timed, or a timed schedule does not exist for these ranks.
        """
        if len(executors := timed.by_executor()) > 1:
            raise ProfileError(
                f"these schedules ran on {' and '.join(executors)}, each of which has costs of its own.\n"
                '  Cure: take one of timed.by_executor(), such as timed.by_executor()["xla"].'
            )
        made = tuple(_schedule(each, ranks, timed.late, links) for each in timed.schedules)
        alike = links.topology is None and max(links.nics, default=1.0) == 1
        return cls(timed, made, *cls.modelled(timed, made, links), alike)

    @classmethod
    def modelled(
        cls, timed: TimedSchedules, made: Sequence[Schedule | None], links: Cluster
    ) -> tuple[Costs, dict[int, float]]:
        """Returns the executor's model with the unit costs that fit best, and the model's errors by size.

        The error on a schedule is the error of a model that is fitted without this schedule.
        """
        tables = [(schedule, each.samples) for schedule, each in zip(made, timed.schedules, strict=True) if schedule]
        tables = [(schedule, samples) for schedule, samples in tables if schedule.kind not in WHOLE]
        rows = [(i, sample) for i, (_, samples) in enumerate(tables) for sample in samples]
        seconds = np.array([_seconds(sample) for _, sample in rows]).ravel()
        schedule_of = np.repeat([i for i, _ in rows], 2)
        best: tuple[float, Work, Floats] | None = None
        for work in work_of(timed.executor, links, timed.late):
            amounts = _amounts(work, tables) / seconds[:, None]
            error = float(np.square(amounts @ _units(amounts) - 1).sum())
            if best is None or error < best[0]:
                best = error, work, amounts
        assert best
        _, work, amounts = best
        held_out = np.empty(len(seconds))
        for i in range(len(tables)):
            own = schedule_of == i
            held_out[own] = np.log(np.maximum(amounts[own] @ _units(amounts[~own]), 1e-9))
        size_of = np.repeat([sample.bytes for _, sample in rows], 2)
        errors = {size: float(np.sqrt(np.square(held_out[size_of == size]).mean())) for size in timed.sizes}
        return TermCosts(work, _units(amounts)), errors

    @property
    def between_hosts(self) -> bool:
        """Whether links between hosts determine the times."""
        return False

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The timed sizes, ascending."""
        return self.timed.sizes

    def phases(self, schedule: Schedule, nbytes: int) -> tuple[float, float]:
        """Implements `Costs.phases`."""
        samples = self.samples(schedule)
        if samples is None:
            return self.model.phases(schedule, nbytes)
        together, late = (_between(nbytes, samples, column) for column in zip(*map(_seconds, samples), strict=True))
        return max(0.0, together - late) if schedule.precondition else 0.0, late

    def lax_seconds(self, nbytes: int) -> float:
        """Seconds of `lax.psum` after the late rank's arrival; infinite if `lax.psum` was not timed."""
        samples = self._lax
        return _between(nbytes, samples, [sample.late_s for sample in samples]) if samples else math.inf

    def samples(self, schedule: Schedule) -> list[ScheduleSample] | None:
        """The measured times of a schedule, or None if it was not timed."""
        found = self._tables.get(schedule)
        if found is None and self.any_rank and schedule.late is not None:
            found = self._of_any_rank.get((schedule.kind, schedule.num_chunks, schedule.volume))
        return found

    def reaches(self, nbytes: int) -> bool:
        """Whether the timed sizes determine the time of `nbytes`.

        True if `nbytes` is at most the largest timed size, or if the default schedule's times at the two largest timed
        sizes are proportional to bytes.
        """
        if nbytes <= self.sizes[-1]:
            return True
        default = [self._default[size] for size in self.sizes[-2:]]
        grown = default[-1].together_s / default[0].together_s
        return len(default) > 1 and grown >= PROPORTIONAL * self.sizes[-1] / self.sizes[-2]

    def about(self, nbytes: int) -> tuple[int, ...]:
        """`nbytes` if this size was timed, otherwise the timed sizes just below and just above it."""
        above = bisect.bisect_left(self.sizes, nbytes)
        return self.sizes[max(0, above - (above == len(self.sizes) or self.sizes[above] != nbytes)) : above + 1]

    def beside(self, nbytes: int) -> tuple[int, ...]:
        """The timed sizes just below and just above the timed size `nbytes`, or `nbytes` if no other size was timed."""
        at = self.sizes.index(nbytes)
        return (*self.sizes[max(0, at - 1) : at], *self.sizes[at + 1 : at + 2]) or (nbytes,)

    def margin(self, schedule: Schedule, nbytes: int, other: Schedule | None) -> float:
        """The smallest gain over `other` that errors cannot explain, as a share of the time of `other`.

        If `schedule` was not timed at the sizes `about(nbytes)`, this share is the model's error at these sizes. If
        `schedule` was timed, each turn gives a ratio of its time to the time of the default schedule, which runs
        without a plan. The share is then the 95 % error bound (see `error_of`) of one turn's ratio or, if the model
        also expects a gain, of the median ratio. `other` is None for `lax.psum`.
        """
        about = self.about(nbytes)
        timed = {sample.bytes: sample for sample in self.samples(schedule) or ()}
        if not {*about} <= {*timed}:
            return 1 - math.exp(-max(self.errors[size] for size in about))
        turns = [turn_ratios(timed[size].after, self._default[size].after) for size in about]
        return 1 - math.exp(-max(error_of(each, self._is_expected(schedule, nbytes, other)) for each in turns))

    def margin_over(self, schedule: Schedule | None, nbytes: int, of: TimedCosts, other: Schedule) -> float:
        """The smallest gain over `other` that errors cannot explain, as a share of the time of `other`.

        If both schedules were timed, in the same turns, this share is the 95 % error bound of the ratio of their times
        in one turn. Otherwise the share is the error of the model for the schedule that was not timed.
        Another executor, whose costs are in `of`, runs `other`. `schedule` is None for `lax.psum`.
        """
        own, others = (
            {sample.bytes: sample for sample in found or ()}
            for found in (self.samples(schedule) if schedule else self._lax, of.samples(other))
        )
        about = self.about(nbytes)
        unknown = [
            costs.errors[size] for costs, found in ((self, own), (of, others)) for size in about if size not in found
        ]
        if unknown:
            return 1 - math.exp(-max(unknown))
        turns = [turn_ratios(own[size].after, others[size].after) for size in about]
        return 1 - math.exp(-max(error_of(each, of_median=False) for each in turns))

    @property
    def error(self) -> float:
        """The model's error on schedules that it was not fitted to, as a share of the time: the median over sizes."""
        return math.expm1(float(np.median([*self.errors.values()])))

    def _is_expected(self, schedule: Schedule, nbytes: int, other: Schedule | None) -> bool:
        """Whether the model expects a gain."""
        if schedule.kind in WHOLE:
            return False
        known = self.model.cost(other, nbytes, math.inf) if other else self.lax_seconds(nbytes)
        return self.model.cost(schedule, nbytes, math.inf) < EXPECTED * known

    @cached_property
    def _tables(self) -> dict[Schedule, list[ScheduleSample]]:
        return {made: each.samples for made, each in zip(self.made, self.timed.schedules, strict=True) if made}

    @cached_property
    def _of_any_rank(self) -> dict[tuple[str, int, int], list[ScheduleSample]]:
        tables = self._tables.items()
        return {(made.kind, made.num_chunks, made.volume): found for made, found in tables if made.late is not None}

    @cached_property
    def _lax(self) -> list[ScheduleSample]:
        return next((each.samples for each in self.timed.schedules if each.kind == "lax"), [])

    @cached_property
    def _default(self) -> dict[int, ScheduleSample]:
        """The times of the default schedule for each size. If there are several such schedules, the fastest counts."""
        found: dict[int, ScheduleSample] = {}
        for each in self.timed.schedules:
            for sample in each.samples if each.kind in self.timed.defaults else ():
                known = found.get(sample.bytes)
                found[sample.bytes] = min(known, sample, key=lambda of: of.late_s) if known else sample
        return found


def _between(nbytes: int, samples: Sequence[ScheduleSample], seconds: Sequence[float]) -> float:
    """Seconds for a size, interpolated in logarithms.

    Below the smallest timed size the seconds are constant, above the largest they are proportional to bytes.
    """
    sizes = [sample.bytes for sample in samples]
    found = math.exp(np.interp(math.log(max(1, nbytes)), np.log(sizes), np.log(seconds)))
    return found * max(1.0, nbytes / sizes[-1])


def _schedule(timed: TimedSchedule, ranks: int, late: int, links: Cluster) -> Schedule | None:
    if timed.kind == "lax":
        return None
    template = schedules.template(ranks) if timed.kind in ("straggler", "hybrid") else None
    if timed.kind in ("hierarchical", "halving_doubling_by_hosts") and links.topology is None:
        raise ProfileError(
            f"a {timed.kind} schedule was timed, but the profile has no hosts whose links differ.\n"
            "  Cure: measure again; hosts and timed schedules belong together."
        )
    return build(timed_spec(timed.name), ranks, {ROLE: late}, template, topology=links.topology)


def _seconds(sample: ScheduleSample) -> tuple[float, float]:
    return sample.together_s, sample.late_s


def _amounts(work: Work, tables: Sequence[tuple[Schedule, Sequence[ScheduleSample]]]) -> Floats:
    """Returns two rows of terms per sample: the work with no late rank, and the work after a late rank's arrival.

    If no call with a late rank was timed, both rows are the work with no late rank.
    """
    rows = []
    for schedule, samples in tables:
        for sample in samples:
            phases = work(schedule, sample.bytes)
            rows += [phases.sum(axis=0), phases[-1] if sample.late else phases.sum(axis=0)]
    return np.array(rows)


def _units(amounts: Floats) -> Floats:
    """The non-negative unit costs with which the rows' costs, `amounts @ units`, are closest to 1 (least squares).

    The caller has divided each row by its measured seconds.
    """
    scale = np.maximum(np.abs(amounts).max(axis=0), 1e-300)
    optimize = load_extra("scipy.optimize", "planning by timed schedules")
    units: Floats = optimize.nnls(amounts / scale, np.ones(len(amounts)))[0] / scale
    return units
