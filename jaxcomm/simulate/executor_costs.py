"""The cost of a schedule on the executor that runs it: one interface, and a model per executor.

    costs = TimedCosts.of(timed, ranks, links)
    costs.cost(schedule, nbytes, lateness)      # seconds from the late rank's arrival to the end

An executor brings a model by the same interface: its work with a schedule, as amounts of some terms (`executor_work`).
The cost of a unit of each is fitted to whole schedules that were timed on it (`TermCosts`); schedules that were timed
themselves are interpolated between sizes instead (`TimedCosts`). Without timed schedules, α and β are all that is known
(`LinkCosts`).
"""

from __future__ import annotations

import bisect
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
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

# Student's t for 95 %, by turns: standard deviations, or errors, that a timed schedule must gain.
STUDENT: Final = {2: 12.7, 3: 4.3, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45}
CHANCE: Final = 0.05
EXPECTED: Final = 0.9  # of another schedule's time that the model must predict, to expect a gain
PROPORTIONAL: Final = 0.75  # of the ratio of two sizes, by which times must grow to be taken for the bytes' alone
MEDIAN: Final = 1.2533  # standard errors of a median, in those of a mean

Floats = NDArray[np.float64]
Key = tuple[str, int | None]


class Costs(ABC):
    """Seconds of schedules on one executor."""

    @abstractmethod
    def phases(self, schedule: Schedule, nbytes: int) -> tuple[float, float]:
        """Seconds of what is done before the late ranks' arrival if these are late enough, and of the rest."""

    def cost(self, schedule: Schedule, nbytes: int, lateness: float = 0.0) -> float:
        """Seconds from the arrival of a schedule's late ranks to the end.

        Args:
          schedule: any schedule.
          nbytes: size of one rank's buffer.
          lateness: seconds by which these ranks come after the others.
        """
        before, after = self.phases(schedule, nbytes)
        return max(0.0, before - lateness) + after


@dataclass(frozen=True)
class LinkCosts(Costs):
    """A round that moves b bytes takes α + bβ; where links differ, messages are timed one by one (`clock`).

    Before the `late` ranks come a schedule that waits for no late rank does what it can, too, where links differ.
    """

    links: Cluster
    late: tuple[int, ...] = ()

    def phases(self, schedule: Schedule, nbytes: int) -> tuple[float, float]:
        """As `Costs.phases`."""
        return link_seconds(schedule, nbytes, self.links, self.late)


@dataclass(frozen=True)
class TermCosts(Costs):
    """Seconds that are the sum of an executor's work, each term at its unit cost."""

    work: Work
    units: Floats

    def phases(self, schedule: Schedule, nbytes: int) -> tuple[float, float]:
        """As `Costs.phases`."""
        before, after = self.work(schedule, nbytes) @ self.units
        return float(before), float(after)


@dataclass(frozen=True)
class TimedCosts(Costs):
    """Timed schedules, interpolated between sizes; others as the executor's model has them, fitted to those of rounds.

    Attributes:
      timed: the measurements.
      model: of all other schedules.
      errors: by size, the rms of the logarithms of modelled to measured times, where the model was fitted without the
        schedule in question.
      any_rank: whether times with another late rank are the same, as where links are alike.
    """

    timed: TimedSchedules
    model: TermCosts
    errors: tuple[float, ...]
    any_rank: bool

    @classmethod
    def of(cls, timed: TimedSchedules, ranks: int, links: Cluster) -> Self:
        """The costs of the executor that was timed.

        Args:
          timed: the measurements, of one executor.
          ranks: number of ranks.
          links: the links, which may differ.

        Raises:
          ProfileError: several executors were timed.
        """
        if len(executors := timed.by_executor()) > 1:
            raise ProfileError(
                f"these schedules ran on {' and '.join(executors)}, each of which has costs of its own.\n"
                '  Cure: take one of timed.by_executor(), such as timed.by_executor()["xla"].'
            )
        tables = [each for each in timed.schedules if each.kind not in WHOLE]
        made = [_schedule(each, ranks, timed.late) for each in tables]
        seconds = np.array([_seconds(sample) for each in tables for sample in each.samples]).ravel()
        rows = [(i, j) for i, each in enumerate(tables) for j, _ in enumerate(each.samples) for _ in range(2)]
        schedule_of, size_of = np.array(rows).T
        best: tuple[float, Work, Floats] | None = None
        for work in work_of(timed.executor, links, timed.late):
            amounts = _amounts(work, made, tables) / seconds[:, None]
            error = float(np.square(amounts @ _units(amounts) - 1).sum())
            if best is None or error < best[0]:
                best = error, work, amounts
        assert best
        _, work, amounts = best
        held_out = np.empty(len(rows))
        for i in range(len(made)):
            own = schedule_of == i
            held_out[own] = np.log(np.maximum(amounts[own] @ _units(amounts[~own]), 1e-9))
        errors = tuple(float(np.sqrt(np.square(held_out[size_of == j]).mean())) for j in range(max(size_of) + 1))
        alike = links.topology is None and max(links.nics, default=1.0) == 1
        return cls(timed, TermCosts(work, _units(amounts)), errors, alike)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The timed sizes, ascending."""
        return tuple(sample.bytes for sample in self.timed.schedules[0].samples)

    def phases(self, schedule: Schedule, nbytes: int) -> tuple[float, float]:
        """As `Costs.phases`."""
        samples = self._samples(schedule)
        if samples is None:
            return self.model.phases(schedule, nbytes)
        together, late = (self._between(nbytes, column) for column in zip(*map(_seconds, samples), strict=True))
        return max(0.0, together - late) if schedule.precondition else 0.0, late

    def lax_seconds(self, nbytes: int) -> float:
        """Seconds of `lax.psum` after the late rank's arrival; infinite if it was not timed."""
        samples = self._tables.get(("lax", None))
        return self._between(nbytes, [sample.late_s for sample in samples]) if samples else math.inf

    def is_timed(self, schedule: Schedule) -> bool:
        """Whether the schedule itself was timed."""
        return self._samples(schedule) is not None

    def reaches(self, nbytes: int) -> bool:
        """Whether the timed sizes show what a size takes: it is no larger, or the two largest take as long as their
        bytes, so that more bytes take longer in proportion."""
        if nbytes <= self.sizes[-1]:
            return True
        default = self._default[-2:]
        grown = default[-1].together_s / default[0].together_s
        return len(default) > 1 and grown >= PROPORTIONAL * self.sizes[-1] / self.sizes[-2]

    def about(self, nbytes: int) -> tuple[int, ...]:
        """The timed sizes about a size: itself, or its neighbours."""
        above = bisect.bisect_left(self.sizes, nbytes)
        return self.sizes[max(0, above - (above == len(self.sizes) or self.sizes[above] != nbytes)) : above + 1]

    def beside(self, nbytes: int) -> tuple[int, ...]:
        """The timed sizes before and after a timed one; itself, if it is the only one."""
        at = self.sizes.index(nbytes)
        return (*self.sizes[max(0, at - 1) : at], *self.sizes[at + 1 : at + 2]) or (nbytes,)

    def margin(self, schedule: Schedule, nbytes: int, other: Schedule | None) -> float:
        """The share of another schedule's time that a schedule must save, as errors may not make it up.

        Of a schedule that was not timed, the model's error. Of a timed one how far its turns, beside the default's,
        deviate by chance (95 %); or, where the model, which is fitted to all schedules together, expects a gain as
        well, their median. The default, direct or `lax.psum`, is what runs without a plan; `other` is None for lax.
        """
        at = [self.sizes.index(size) for size in self.about(nbytes)]
        samples = self._samples(schedule)
        if samples is None:
            return 1 - math.exp(-max(self.errors[i] for i in at))
        turns = [_ratios(samples[i].late, self._default[i].late) for i in at]
        known = self.model.cost(other, nbytes, math.inf) if other else self.lax_seconds(nbytes)
        is_modelled = schedule.kind not in WHOLE
        is_expected = is_modelled and self.model.cost(schedule, nbytes, math.inf) < EXPECTED * known
        return 1 - math.exp(-max(_error(each, is_expected) for each in turns))

    def margin_over(self, schedule: Schedule | None, nbytes: int, of: TimedCosts, other: Schedule) -> float:
        """The share of the time of another executor's schedule, timed in the same turns, that a schedule must save.

        That is how far its turns deviate from the other's by chance (95 %); where one of the two was not timed, the
        error of its executor's model. `schedule` is None for lax.
        """
        at = [self.sizes.index(size) for size in self.about(nbytes)]
        samples = self._samples(schedule) if schedule else self._tables.get(("lax", None))
        others = of._samples(other)
        unknown = [costs.errors[i] for costs, found in ((self, samples), (of, others)) if not found for i in at]
        if not samples or not others:
            return 1 - math.exp(-max(unknown))
        return 1 - math.exp(-max(_error(_ratios(samples[i].late, others[i].late), of_median=False) for i in at))

    @property
    def error(self) -> float:
        """The model's error on schedules that it was not fitted to, as a share of the time: the median of all sizes."""
        return math.expm1(float(np.median(self.errors)))

    @cached_property
    def _tables(self) -> dict[Key, list[ScheduleSample]]:
        return {(each.kind, each.chunks): each.samples for each in self.timed.schedules}

    @property
    def _default(self) -> list[ScheduleSample]:
        return self._tables.get(("lax", None)) or self._tables["direct", None]

    def _samples(self, schedule: Schedule) -> list[ScheduleSample] | None:
        if schedule.late not in (None, self.timed.late) and not self.any_rank:
            return None
        for key in ((schedule.kind, schedule.num_chunks), (schedule.kind, None)):
            if key in self._tables:
                return self._tables[key]
        return None

    def _between(self, nbytes: int, seconds: Sequence[float]) -> float:
        """Seconds for a size, in logarithms; below the first size that one's, above the last in proportion to bytes."""
        found = math.exp(np.interp(math.log(max(1, nbytes)), np.log(self.sizes), np.log(seconds)))
        return found * max(1.0, nbytes / self.sizes[-1])


def _schedule(timed: TimedSchedule, ranks: int, late: int) -> Schedule:
    spec = timed_spec(timed.kind, timed.chunks)
    template = schedules.template(ranks) if timed.kind == "straggler" else None
    return build(spec, ranks, {ROLE: late}, template)


def _ratios(own: Sequence[float], other: Sequence[float]) -> Floats:
    """Logarithms of the ratios of two schedules' times in the turns that both had."""
    turns = min(len(own), len(other))
    found: Floats = np.log(np.array(own[:turns]) / np.array(other[:turns]))
    return found


def _error(turns: Floats, of_median: bool) -> float:
    """The distance by which chance may part one turn from the others' mean, or their median.

    The median of all possible turns is less than the i-th longest of n turns unless fewer than i of them came out above
    it, each with probability 1/2: no assumption on how times are distributed. It takes five turns for 95 %.
    """
    count = len(turns)
    if count < 2:
        return math.inf
    below = list(itertools.accumulate(math.comb(count, i) / 2**count for i in range(count + 1)))
    longer = bisect.bisect_right(below, CHANCE)  # the number of turns that may be longer than the bound
    if of_median and longer:
        return float(np.sort(turns)[-longer] - np.median(turns))
    share = MEDIAN / math.sqrt(count) if of_median else 1.0
    return STUDENT.get(count, 2.2) * share * float(turns.std(ddof=1))


def _seconds(sample: ScheduleSample) -> tuple[float, float]:
    return sample.together_s, sample.late_s


def _amounts(work: Work, made: Sequence[Schedule], timed: Sequence[TimedSchedule]) -> Floats:
    """Terms by row: with nobody late those of all phases, with one rank late those after its arrival."""
    rows = []
    for schedule, each in zip(made, timed, strict=True):
        for sample in each.samples:
            phases = work(schedule, sample.bytes)
            rows += [phases.sum(axis=0), phases[-1]]
    return np.array(rows)


def _units(amounts: Floats) -> Floats:
    """The unit costs, none negative, with which all rows come nearest to 1."""
    scale = np.maximum(np.abs(amounts).max(axis=0), 1e-300)
    optimize = load_extra("scipy.optimize", "planning by timed schedules")
    units: Floats = optimize.nnls(amounts / scale, np.ones(len(amounts)))[0] / scale
    return units
