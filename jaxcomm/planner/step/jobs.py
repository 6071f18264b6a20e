"""A step's gradients as jobs of the network: the sequences of gradients that may form a bucket, and their schedules.

A bucket is ready when its last gradient is ready. A bucket has two jobs. The first job is the part of its schedule
before the last late rank's arrival. It may start when all ranks that take part in it have the bucket. The second job is
the rest of the schedule. It may start when the last late rank has the bucket and the first job is done. A network that
is never idle while a job waits finishes at the same time in every order of jobs (see `queue`). The order therefore does
not change a step's end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Self

import numpy as np

from jaxcomm.plan.values import Spec
from jaxcomm.planner.step.queue import Floats, StepQueue
from jaxcomm.profile import Bucket

AT_ONCE: Final = 64  # maximum number of steps whose queues are in memory at the same time
ATOMS: Final = 16  # maximum number of atoms; if there are more gradients, neighbouring gradients form one atom


class Option(NamedTuple):
    """One way to sum a bucket: a schedule, and its seconds before and after the last late rank's arrival.

    The part before the arrival may start at `stage` (see `queue`).
    """

    spec: Spec
    before: float
    after: float
    stage: int = 0

    def work(self, stages: int) -> list[float]:
        """Seconds for which the network works on the bucket at each of `stages` stages."""
        return [(stage == self.stage) * self.before for stage in range(stages - 1)] + [self.after]


class BucketRange(NamedTuple):
    """A possible bucket: the gradients `first` to `last` in order of readiness, that is, atoms `begin` to `end`."""

    first: int
    last: int
    bytes: int
    begin: int
    end: int


class Packing(NamedTuple):
    """The buckets, and the index of the option for each bucket size. All calls of one size run the same schedule."""

    runs: tuple[BucketRange, ...]
    choice: dict[int, int]

    def with_option(self, size: int, option: int) -> Packing:
        """The packing with another option for buckets of one size."""
        return self._replace(choice={**self.choice, size: option})


class Jobs(NamedTuple):
    """The possible buckets of a step, the time at which each atom is ready, and the options for each bucket size.

    A bucket uses an option other than the first only if this saves at least the share `min_gain` of the first option's
    `after`.
    """

    ready: Floats
    runs: Sequence[BucketRange]
    options: Mapping[int, Sequence[Option]]
    min_gain: float

    @property
    def single(self) -> Packing:
        """The packing in which each atom is a bucket of its own and uses its first option."""
        runs = sorted(run for run in self.runs if run.begin == run.end)
        return Packing(tuple(runs), {run.bytes: 0 for run in runs})

    def queue(self, stages: Floats) -> StepQueue:
        """The network's queue, without the times τ that cannot determine a packing's end E (`queue` defines τ and E).

        `stages` is as in `StepQueue.of`.
        """
        spanned = {atom for run in self.runs for atom in range(run.begin, run.end)}
        least, most = np.full((len(stages), len(self.ready)), np.inf), np.zeros((len(stages), len(self.ready)))
        for run in self.runs:
            times = np.array([option.work(len(stages)) for option in self.options[run.bytes]])
            least[:, run.end] = np.minimum(least[:, run.end], times.min(axis=0))
            most[:, run.end] = np.maximum(most[:, run.end], times.max(axis=0))
        least[:, sorted(spanned)] = 0.0
        return StepQueue.of(self.ready, stages).pruned(least, most)

    def exposed(self, queue: StepQueue, packing: Packing) -> Floats:
        """For each step of the queue, the seconds from the late rank's last gradient to the last sum."""
        work = np.zeros((len(queue.first), len(self.ready)))
        for run in packing.runs:
            work[:, run.end] = self.options[run.bytes][packing.choice[run.bytes]].work(len(queue.first))
        return queue.exposed(work)

    def seconds(self, stages: Floats, packing: Packing) -> float:
        """The mean of `exposed` over the steps, computed for a few steps at a time."""
        some = np.array_split(stages, -(-stages.shape[1] // AT_ONCE), axis=1)
        return float(np.concatenate([self.exposed(self.queue(each), packing) for each in some]).mean())

    def min_saving(self, run: BucketRange) -> float:
        """Seconds that an option other than the first must save for a bucket to use this option."""
        return self.min_gain * self.options[run.bytes][0].after

    def min_savings(self, packing: Packing) -> float:
        """Seconds that all buckets with an option other than the first must save in total."""
        return sum(self.min_saving(run) for run in packing.runs if packing.choice[run.bytes])


class Atoms(NamedTuple):
    """The gradients in order of readiness, divided into atoms: neighbouring gradients that always share a bucket.

    `starts` has the index of each atom's first gradient, then the number of gradients.
    """

    gradients: Sequence[Bucket]
    starts: tuple[int, ...]

    @classmethod
    def all(cls, gradients: Sequence[Bucket]) -> Self:
        """One atom per gradient."""
        return cls(gradients, tuple(range(len(gradients) + 1)))

    @classmethod
    def few(cls, gradients: Sequence[Bucket]) -> Self:
        """Divides the step's bytes into `ATOMS` equal parts.

        Gradients form one atom if their middle bytes lie in the same part. If there are at most `ATOMS` gradients, each
        is an atom.
        """
        if len(gradients) <= ATOMS:
            return cls.all(gradients)
        ends = np.cumsum([gradient.bytes for gradient in gradients], dtype=float)
        part = (ATOMS * (ends - [gradient.bytes / 2 for gradient in gradients]) / ends[-1]).astype(int)
        starts = np.flatnonzero(np.diff(part, prepend=-1))
        return cls(gradients, (*map(int, starts), len(gradients)))

    @property
    def ready(self) -> Floats:
        """The times at which the atoms' last gradients are ready."""
        return np.array([self.gradients[start - 1].ready_s for start in self.starts[1:]])

    def runs(self, longest: int) -> list[BucketRange]:
        """All possible buckets of at most `longest` neighbouring atoms."""
        bytes_before = [0]
        for gradient in self.gradients:
            bytes_before.append(bytes_before[-1] + gradient.bytes)
        count = len(self.starts) - 1
        spans = [(i, j) for i in range(count) for j in range(i, min(count, i + longest))]
        edges = [(self.starts[i], self.starts[j + 1], i, j) for i, j in spans]
        return [BucketRange(low, high - 1, bytes_before[high] - bytes_before[low], i, j) for low, high, i, j in edges]
