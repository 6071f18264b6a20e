"""A lower bound on the time of schedules whose messages are one chunk each, for one network, late rank and delay.

A message is a sum of distinct contributions to a chunk. The bound is the greatest of four bounds. The first is the time
until the late rank's part of every chunk has reached all other ranks through the late rank's ports. The second is the
time until this part has reached all other hosts through the NICs of the late rank's host. The third is the minimum
total time to transfer all messages, and the fourth is this time for the messages between hosts. The third and fourth
bounds leave out the messages that can be sent during the delay.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from jaxcomm.profile.cluster import Cluster

PRECISION: Final = 1e-6  # relative precision of the bound, which is rounded down


class _Port(NamedTuple):
    """A port that can send a message at `begin` and after every further `busy` seconds.

    A message arrives `way` seconds after it is sent.
    """

    begin: float
    busy: float
    way: float


def lower_bound(chunks: int, nbytes: int, cluster: Cluster, late: int, delay: float) -> float:
    """A lower bound on the seconds from the late rank's arrival to the end of any schedule of `chunks` chunks.

    Args:
      chunks: number of pieces of the buffer; each message is one piece.
      nbytes: size of the buffer.
      cluster: the network, with a topology; time added by racks and slower NICs is not counted.
      late: the late rank.
      delay: seconds by which the rank is late. All other ranks have arrived when these seconds begin.
    """
    topology = cluster.topology
    assert topology
    sizes = [topology.hosts.count(host) for host in range(max(topology.hosts) + 1)]
    ranks, hosts, home = len(topology.hosts), len(sizes), sizes[topology.hosts[late]]
    byte_s = nbytes / chunks * cluster.beta
    fast, slow = cluster.alpha + byte_s, cluster.alpha + topology.slow * byte_s
    # A message occupies a shared link for the time of its bytes, without α.
    per_rank, nic = topology.nic == "rank", slow if topology.nic == "rank" else topology.slow * byte_s
    ways = tuple([fast] * (max(sizes) > 1) + [slow] * (hosts > 1))

    # The late rank's part of every chunk must leave the rank and its host, and spread among the other ranks.
    bounds = [_spread([_Port(0.0, way, way) for way in ways], chunks, ranks - 1, ways)]
    if hosts > 1:
        begins = [_known(count, ways) for count in range(1, home + 1)] if per_rank else [0.0]
        bounds.append(_spread([_Port(begin, nic, slow) for begin in begins], chunks, ranks - home, ways))

    # For each chunk, n - 1 ranks send before a rank has the sum, and n - 1 ranks receive the sum: 2(n-1) messages. At
    # least n of these are sent after the late rank's arrival: one to each other rank, with the late rank's part, and
    # one to the late rank.
    nics, others_nics = (ranks, ranks - 1) if per_rank else (hosts, hosts - (home == 1))
    rate = ranks / fast + nics / nic * (hosts > 1)
    early = (ranks - 1) / fast + others_nics / nic * (hosts > 1)
    bounds += [ranks * chunks / rate, (2 * (ranks - 1) * chunks - delay * early) / rate]

    # In the same way each chunk needs 2(h-1) messages between h hosts. A message that leaves the late rank's host
    # before the arrival counts as one of these messages only if it is in flight at the arrival.
    own = home if per_rank else 1
    counted = 2 * (hosts - 1) * chunks - delay * (nics - own) / nic - own * slow / nic
    return max(*bounds, counted * nic / nics)


def _spread(ports: Sequence[_Port], chunks: int, ranks: int, ways: tuple[float, ...]) -> float:
    """The least time in which messages through the ports can bring all chunks to `ranks` ranks.

    A message that arrives at `a` brings its chunk to at most `_informed(t - a)` ranks by `t`, forwarding included.
    """
    below, above = 0.0, max(port.begin + chunks * port.busy + port.way for port in ports)
    while _delivered(ports, above, ranks, ways) < chunks * ranks:
        above *= 2
    while above - below > PRECISION * above:
        middle = (below + above) / 2
        below, above = (below, middle) if _delivered(ports, middle, ranks, ways) >= chunks * ranks else (middle, above)
    return below


def _delivered(ports: Sequence[_Port], time: float, ranks: int, ways: tuple[float, ...]) -> int:
    """The maximum number of pairs of rank and chunk that messages through the ports can have reached by `time`."""
    reached = 0
    for port in ports:
        for count in itertools.count():
            left = time - (port.begin + count * port.busy + port.way)
            if left < 0:
                break
            reached += _informed(left, ranks, ways)
    return reached


def _known(count: int, ways: tuple[float, ...]) -> float:
    """The earliest time at which `count` ranks can have the data of one rank."""
    counts = itertools.product(range(count), repeat=len(ways))
    times = sorted(sum(way * number for way, number in zip(ways, each, strict=True)) for each in counts)
    return next(time for time in times if _informed((1 + PRECISION) * time, count, ways) >= count)


@lru_cache(maxsize=1 << 16)
def _informed(time: float, most: int, ways: tuple[float, ...]) -> int:
    """The number of ranks, at most `most`, that one rank's data can have reached by `time`, forwarding included.

    Every rank may use links of all kinds at once.
    """
    if time < 0:
        return 0
    if time >= most * min(ways):  # one rank can have sent to all others by itself
        return most
    total = 1
    for way in ways:
        for count in range(1, math.floor(time / way) + 1):
            total += _informed(time - count * way, most, ways)
            if total >= most:
                return most
    return total
