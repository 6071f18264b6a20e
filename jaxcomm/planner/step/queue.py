"""The time at which the network finishes a step's gradient buckets.

The network is a queue. The ranks that are not late have bucket b at the time r_b. Stage s of bucket b also needs some
late ranks. The stage enters the queue at r_b + d_s, when the last of these late ranks has the bucket. Stage 0 needs no
late rank, so d_0 = 0. A schedule's precondition runs at one of the stages, and the rest of the schedule runs at the
last stage. In any order of service, the queue is empty at

    E = max over τ in all {r_b + d_s} of τ + Σ over s of Σ_{r_b + d_s >= τ} work_{s,b}.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class StepQueue(NamedTuple):
    """The queue in several steps. Its arrays have one row per time τ and one column per step.

    `last` is, for each step, the time at which the last late rank has the last bucket. `from_last` is τ - `last`. The
    work is added to `from_last` instead of τ, because a long delay makes τ so large that rounding would lose the work.
    `first` is, for every stage, the index of the first bucket that enters the stage at τ or later.
    """

    from_last: Floats
    first: Ints
    last: Floats

    @classmethod
    def of(cls, ready: Floats, stages: Floats) -> Self:
        """The queue of buckets that are ready at these ascending times.

        Args:
          ready: r_b of every bucket.
          stages: d_s, one row per stage and one column per step.
        """
        column = ready[:, None]
        first = [np.concatenate([np.searchsorted(ready, column + (now - then)) for now in stages]) for then in stages]
        from_last = np.concatenate([(column - ready[-1]) + (now - stages[-1]) for now in stages])
        return cls(from_last, np.array(first), ready[-1] + stages[-1])

    @property
    def time(self) -> Floats:
        """The times τ of every step."""
        return self.from_last + self.last

    def ends(self, work: Floats) -> Floats:
        """For every τ and step, τ plus all work that enters at τ or later, minus `last`.

        A column's maximum is E - `last` of that step.

        Args:
          work: seconds of network time, one row per stage and one column per bucket.
        """
        ends = self.from_last
        for first, part in zip(self.first, work, strict=True):
            ends = ends + np.append(np.cumsum(part[::-1])[::-1], 0.0)[first]
        return ends

    def exposed(self, work: Floats) -> Floats:
        """For each step, E - `last`: the time for which the step waits for the network after its last gradient."""
        return np.asarray(self.ends(work).max(axis=0))

    def pruned(self, least: Floats, most: Floats) -> Self:
        """The queue without the times τ that cannot determine E if all work is between `least` and `most`."""
        keep = (self.ends(most) >= self.ends(least).max(axis=0)).any(axis=1)
        return self._replace(from_last=self.from_last[keep], first=self.first[:, keep])
