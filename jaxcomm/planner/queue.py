"""When a network that works off a step's gradient buckets is done.

The network is a queue. Bucket b's precondition enters it when the others have the bucket, at r_b; the rest of b's
schedule when the late rank has it, at r_b + d. Whatever the order of service, such a queue is empty at

    E(d) = max over τ in {r_b} ∪ {r_b + d} of τ + Σ_{r_b >= τ} before_b + Σ_{r_b + d >= τ} after_b.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Work(NamedTuple):
    """Seconds of network time of each bucket, in the order in which they are ready: before and after the late rank."""

    before: Floats
    after: Floats


class Queue(NamedTuple):
    """The queue for several delays d: one row per τ and one column per delay.

    `time` is τ; `before` and `after` are the first bucket whose one and other part enters at τ or later. `last` is when
    the late rank has the last bucket.
    """

    time: Floats
    before: Ints
    after: Ints
    last: Floats

    @classmethod
    def of(cls, ready: Floats, delays: Floats) -> Self:
        """The queue of buckets that are ready at these ascending times."""
        column = ready[:, None]
        shape = (len(ready), len(delays))
        first = np.broadcast_to(np.searchsorted(ready, column), shape)
        return cls(
            np.concatenate([np.broadcast_to(column, shape), column + delays]),
            np.concatenate([first, np.searchsorted(ready, column + delays)]),
            np.concatenate([np.searchsorted(ready, column - delays), first]),
            ready[-1] + delays,
        )

    def ends(self, work: Work) -> Floats:
        """τ and all that enters from then on, for every τ and delay: E(d) is the greatest of a column."""
        before, after = (np.append(np.cumsum(part[::-1])[::-1], 0.0) for part in work)
        ends: Floats = self.time + before[self.before] + after[self.after]
        return ends

    def exposed(self, work: Work) -> Floats:
        """E(d) - r_last - d for each delay: how long the step waits for the network after its last gradient."""
        return np.asarray(self.ends(work).max(axis=0) - self.last)

    def pruned(self, least: Work, most: Work) -> Self:
        """The queue without those τ that cannot decide E, whatever the work between `least` and `most`."""
        keep = (self.ends(most) >= self.ends(least).max(axis=0)).any(axis=1)
        return self._replace(time=self.time[keep], before=self.before[keep], after=self.after[keep])
