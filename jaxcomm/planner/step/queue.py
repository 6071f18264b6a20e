"""When a network that works off a step's gradient buckets is done.

The network is a queue. Bucket b is with the ranks that are not late at r_b. Stage s of it needs some of the late ranks,
too, and enters the queue when the last of these has it, at r_b + d_s: its precondition at some stage (d_0 = 0: nobody
late is needed), the rest of its schedule at the last one. In any order of service such a queue is empty at

    E = max over τ in all {r_b + d_s} of τ + Σ over s of Σ_{r_b + d_s >= τ} work_{s,b}.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class StepQueue(NamedTuple):
    """The queue for several steps: one row per τ and one column per step.

    `last` is when the last of the late ranks has the last bucket, `from_last` is τ - `last`: beside a long delay, a τ
    of its own would round away what the work takes. `first` is, for every stage, the first bucket of which it enters at
    τ or later.
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
        """τ, for every step."""
        return self.from_last + self.last

    def ends(self, work: Floats) -> Floats:
        """τ and all that enters from then on, less `last`, for every τ and step: the greatest of a column is E's.

        Args:
          work: seconds of network time, one row per stage and one column per bucket.
        """
        ends = self.from_last
        for first, part in zip(self.first, work, strict=True):
            ends = ends + np.append(np.cumsum(part[::-1])[::-1], 0.0)[first]
        return ends

    def exposed(self, work: Floats) -> Floats:
        """E - `last` for each step: how long it waits for the network after its last gradient."""
        return np.asarray(self.ends(work).max(axis=0))

    def pruned(self, least: Floats, most: Floats) -> Self:
        """The queue without those τ that cannot decide E, whatever the work between `least` and `most`."""
        keep = (self.ends(most) >= self.ends(least).max(axis=0)).any(axis=1)
        return self._replace(from_last=self.from_last[keep], first=self.first[:, keep])
