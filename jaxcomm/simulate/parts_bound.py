"""The least time of an all-reduce on hosts and racks whose links have any rates.

Divide the ranks into p parts, in whatever way, and follow one chunk. Before any rank has its sum, every part but that
rank's has sent a message with its own contributions to another part; afterwards all other parts must receive one with
the sum. So 2(p-1) messages pass between parts, however the chunk is summed. A part sends at the rate of its links to
other parts, so the buffer takes at least 2(p-1) times its bytes over the sum of these rates. A part alone sends one
message and receives one: its own bytes over its rate.

The parts that count most are found by the rate that they would have to reach: a rack is divided into its hosts, and a
host into its ranks, where the messages that this adds take longer than its links at that rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from jaxcomm.profile.cluster import Topology

_PRECISION: Final = 1e-12


class _Parts(NamedTuple):
    """A number of parts, and the rate at which they send in all, in buffers per time of a buffer within a host."""

    number: int
    rate: float


class _Unit(NamedTuple):
    """Ranks that may be one part, if `whole` is given, or divided into smaller units, if there are any."""

    whole: _Parts | None
    divided: tuple[_Unit, ...] = ()


@lru_cache(maxsize=256)
def least_time(topology: Topology) -> float:
    """The time that no all-reduce of ranks that come together can beat, in times of the buffer within a host."""
    rates = [1 / slowness for slowness in topology.host_slowness]
    homes = topology.racks or (0,) * len(rates)
    ranks = [topology.hosts.count(host) for host in range(len(rates))]
    divided = [_Unit(_Parts(count, rate + count)) for count, rate in zip(ranks, rates, strict=True)]
    hosts = [_Unit(_Parts(1, rate), (divided[at],) * (ranks[at] > 1)) for at, rate in enumerate(rates)]
    racks = [[at for at, home in enumerate(homes) if home == rack] for rack in range(max(homes) + 1)]
    uplinks = [1 / (topology.slow * each) for each in topology.uplinks] or [math.inf]
    leaving = [min(uplinks[rack], sum(rates[host] for host in own)) for rack, own in enumerate(racks)]
    pieces = [tuple(hosts[host] for host in own) for own in racks]
    if len(racks) == 1:
        leaving, found = [], [_time(pieces[0])]
    else:
        found = [_time([_Unit(_Parts(1, rate), own) for rate, own in zip(leaving, pieces, strict=True)])]
    # One of them divided, and all others as one part, which enters by its links.
    for own, uplink, rate in zip(pieces, uplinks, leaving, strict=False):
        found.append(_time([*own, _Unit(_Parts(1, min(uplink, sum(leaving) - rate)))]))
    for each, rate in zip(divided, rates, strict=True):
        if len(rates) > 1:
            found.append(_time([each, _Unit(_Parts(1, min(rate, sum(rates) - rate)))]))
    alone = [1 / rate for rate in (*rates, *leaving) if len(rates) > 1]
    return max(*found, *alone, 0.0)


def _time(units: Sequence[_Unit]) -> float:
    """The longest of 2(p-1) over the parts' rate, of all ways to divide the units (by Dinkelbach's method)."""
    longest = 0.0
    while True:
        parts = _sum([_best(unit, longest) for unit in units])
        time = 2 * (parts.number - 1) / parts.rate
        if time <= longest * (1 + _PRECISION):
            return longest
        longest = time


def _best(unit: _Unit, time: float) -> _Parts:
    """The parts of a unit whose messages exceed by most what they can send in that time."""
    options = [unit.whole] if unit.whole else []
    if unit.divided:
        options.append(_sum([_best(each, time) for each in unit.divided]))
    return max(options, key=lambda parts: 2 * parts.number - time * parts.rate)


def _sum(parts: Sequence[_Parts]) -> _Parts:
    return _Parts(sum(each.number for each in parts), sum(each.rate for each in parts))
