"""Times of one synchronisation of all ranks over racks, by the formulas of Wang et al., "DS-Sync", Table II.

Symbols: C racks of G workers each, N = CG; a model of S bytes sent in L parts; α seconds per hop, β₁ seconds per byte
within a rack and β₂ between racks. Each cost is (latency, transfer) as in the table. The table is imprecise in four
places, where this module assumes:

  PS            There is one server. The traffic between racks is the traffic of (C − 1)G workers. The latency counts
                the workers one after the other.
  double tree   log is to base 2; pushing k chunks through a tree takes log N + k hops of S/k bytes.
  gossip        The transfer is a lower bound, for a worker with two peers that are both in other racks.
  DS-Sync       The cost is the greater of two costs: of a pair over the slow uplink, and of a ring of the G − 1 workers
                that stay in their rack. The table prints the ring's transfer with β₁, and the latencies of both groups.
                Here the latency of the group that ends last counts.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class RackedWorkers(NamedTuple):
    """Racks, workers per rack, bytes of the model, seconds per hop, seconds per byte within a rack and between racks,
    and parts of the model."""

    racks: int
    per_rack: int
    nbytes: float
    alpha: float
    within: float
    between: float
    layers: int = 1

    @property
    def workers(self) -> int:
        """The number of workers N."""
        return self.racks * self.per_rack


class Cost(NamedTuple):
    """Seconds of one synchronisation."""

    latency: float
    transfer: float

    @property
    def seconds(self) -> float:
        """Latency plus transfer."""
        return self.latency + self.transfer


def ps(given: RackedWorkers) -> Cost:
    """A parameter server: every worker pushes its model and pulls the mean."""
    crossing = (given.racks - 1) * given.per_rack * given.between
    volume = 2 * given.nbytes * (crossing + (given.per_rack - 1) * given.within)
    return Cost(2 * (given.workers - 1) * given.layers * given.alpha, volume)


def ring(given: RackedWorkers) -> Cost:
    """A ring over all workers. Every round takes the time of its slowest link."""
    steps = 2 * (given.workers - 1)
    return Cost(steps * given.layers * given.alpha, steps * given.nbytes / given.workers * given.between)


def double_tree(given: RackedWorkers, chunks: int | None = None) -> Cost:
    """Two trees with pipelined chunks. By default there are k = √(log N · Sβ₂ / (Lα)) chunks, the best number."""
    depth = math.log2(given.workers)
    if chunks is None:
        hop = given.layers * given.alpha
        best = math.sqrt(depth * given.nbytes * given.between / hop) if hop else given.nbytes
        chunks = max(1, round(best))
    steps = 2 * (depth + chunks)
    return Cost(steps * given.layers * given.alpha, steps * given.nbytes / chunks * given.between)


def hierarchical(given: RackedWorkers) -> Cost:
    """Reduce in the rack, allreduce between racks, broadcast in the rack, one after the other."""
    inside = 2 * (given.per_rack - 1) * given.nbytes / given.per_rack * given.within
    outside = 2 * (given.racks - 1) * given.nbytes / given.racks * given.between
    return Cost(2 * (given.per_rack + given.racks - 2) * given.layers * given.alpha, inside + outside)


def gossip(given: RackedWorkers) -> Cost:
    """An exchange with neighbours. In some iterations at least two connections share an uplink."""
    return Cost(2 * given.layers * given.alpha, 4 * given.nbytes * given.between)


def ds_sync(given: RackedWorkers) -> Cost:
    """The slower of two groups: a pair over the slow uplink, and the ring of the workers that stay in their rack."""
    pair = Cost(2 * given.layers * given.alpha, 2 * given.nbytes * given.between)
    rest = given.per_rack - 1
    if rest < 2:
        return pair
    # The latency 2L(G − 1)α is from the table, although a ring of G − 1 workers has 2(G − 2) hops.
    stay = Cost(2 * given.layers * rest * given.alpha, 2 * (rest - 1) / rest * given.nbytes * given.within)
    return max(pair, stay, key=lambda cost: cost.seconds)
