"""A step's gradients as jobs of the network: the runs of them that may be one bucket, and the schedules of each.

A bucket is ready with its last gradient. One job of it may start when the ranks that it needs have the bucket, and one
more when the last of the late ranks has it, too, and the first is done. A network that is never idle while a job waits
is done at the same time whatever the order (see `queue`), so a step's end needs no order, and its boundaries decide its
queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Self

import numpy as np

from jaxcomm.plan.values import Spec
from jaxcomm.planner.step.queue import Floats, StepQueue
from jaxcomm.profile import Bucket

AT_ONCE: Final = 64  # steps whose queues are held at once
ATOMS: Final = 16  # runs begin and end with these: more gradients are joined into this many groups of about equal bytes


class Option(NamedTuple):
    """A way to sum a bucket: its schedule, and the seconds before and after the last late rank's arrival; the part
    before may start at `stage` of the step (see `queue`)."""

    spec: Spec
    before: float
    after: float
    stage: int = 0

    def work(self, stages: int) -> list[float]:
        """Seconds of the network at each of `stages` stages."""
        return [(stage == self.stage) * self.before for stage in range(stages - 1)] + [self.after]


class BucketRange(NamedTuple):
    """A bucket of the gradients from `first` to `last`, in the order in which they are ready; ready with atom `end`."""

    first: int
    last: int
    bytes: int
    begin: int
    end: int


class Packing(NamedTuple):
    """The buckets, and which option each of their sizes takes: calls of one size run one schedule."""

    runs: tuple[BucketRange, ...]
    choice: dict[int, int]

    def with_option(self, size: int, option: int) -> Packing:
        """The same with another option for buckets of a size."""
        return self._replace(choice={**self.choice, size: option})


class Jobs(NamedTuple):
    """The runs from which a step's buckets are made, when their ends are ready, and the options of their sizes.

    A bucket that does not take its first option must save `min_gain` of what that takes after the arrival.
    """

    ready: Floats
    runs: Sequence[BucketRange]
    options: Mapping[int, Sequence[Option]]
    min_gain: float

    @property
    def single(self) -> Packing:
        """Every atom a bucket, with its first option."""
        runs = sorted(run for run in self.runs if run.begin == run.end)
        return Packing(tuple(runs), {run.bytes: 0 for run in runs})

    def queue(self, stages: Floats) -> StepQueue:
        """The network's queue, as far as any packing can decide its end; `stages` as for `StepQueue.of`."""
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
        """The mean of `exposed` over the steps, computed for a few at a time."""
        some = np.array_split(stages, -(-stages.shape[1] // AT_ONCE), axis=1)
        return float(np.concatenate([self.exposed(self.queue(each), packing) for each in some]).mean())

    def min_saving(self, run: BucketRange) -> float:
        """Seconds that a bucket must save to take another option than the first."""
        return self.min_gain * self.options[run.bytes][0].after

    def min_savings(self, packing: Packing) -> float:
        """Seconds that all buckets must save together."""
        return sum(self.min_saving(run) for run in packing.runs if packing.choice[run.bytes])


class Atoms(NamedTuple):
    """The gradients in the order in which they are ready, and the first of each atom, with one more for their end."""

    gradients: Sequence[Bucket]
    starts: tuple[int, ...]

    @classmethod
    def all(cls, gradients: Sequence[Bucket]) -> Self:
        """Every gradient by itself."""
        return cls(gradients, tuple(range(len(gradients) + 1)))

    @classmethod
    def few(cls, gradients: Sequence[Bucket]) -> Self:
        """At most `ATOMS` of them: gradients whose middles lie in the same part of the step's bytes are one."""
        if len(gradients) <= ATOMS:
            return cls.all(gradients)
        ends = np.cumsum([gradient.bytes for gradient in gradients], dtype=float)
        part = (ATOMS * (ends - [gradient.bytes / 2 for gradient in gradients]) / ends[-1]).astype(int)
        starts = np.flatnonzero(np.diff(part, prepend=-1))
        return cls(gradients, (*map(int, starts), len(gradients)))

    @property
    def ready(self) -> Floats:
        """When the last gradient of each atom is ready."""
        return np.array([self.gradients[start - 1].ready_s for start in self.starts[1:]])

    def runs(self, longest: int) -> list[BucketRange]:
        """All buckets of up to `longest` neighbouring atoms."""
        bytes_before = [0]
        for gradient in self.gradients:
            bytes_before.append(bytes_before[-1] + gradient.bytes)
        count = len(self.starts) - 1
        spans = [(i, j) for i in range(count) for j in range(i, min(count, i + longest))]
        edges = [(self.starts[i], self.starts[j + 1], i, j) for i, j in spans]
        return [BucketRange(low, high - 1, bytes_before[high] - bytes_before[low], i, j) for low, high, i, j in edges]
