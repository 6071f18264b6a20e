"""The least time of an all-reduce on hosts and racks, for arbitrary rates of the links.

Divide the ranks into any p parts, and follow one chunk. Before a rank has the sum of the chunk, every part that does
not contain this rank has sent a message with its own contributions to another part. Afterwards all these parts must
receive a message with the sum. So 2(p-1) messages pass between parts, however the chunk is summed. A part sends at the
rate of its links to other parts. So the least time is 2(p-1) times the bytes of the buffer, divided by the sum of the
parts' rates. A single part sends one message and receives one, so the time is also at least the bytes of the buffer
divided by the rate of this part.

A search over times finds the parts with the greatest bound. For a given time, a rack is divided into its hosts, or a
host into its ranks, if the division adds more messages than the added links can send in this time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from jaxcomm.profile.cluster import Topology

_PRECISION: Final = 1e-12


class _Parts(NamedTuple):
    """A number of parts, and their total sending rate, relative to the rate at which a rank sends within its host."""

    number: int
    rate: float


class _Unit(NamedTuple):
    """Ranks that form the parts `whole`, or are divided into the units `divided`."""

    whole: _Parts | None
    divided: tuple[_Unit, ...] = ()


@lru_cache(maxsize=256)
def least_time(topology: Topology) -> float:
    """The time that no all-reduce can beat if ranks arrive together, in units of the buffer's time within a host."""
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
    # One rack or host is divided, and all other ranks are one part, connected by the links of that rack or host.
    for own, uplink, rate in zip(pieces, uplinks, leaving, strict=False):
        found.append(_time([*own, _Unit(_Parts(1, min(uplink, sum(leaving) - rate)))]))
    for each, rate in zip(divided, rates, strict=True):
        if len(rates) > 1:
            found.append(_time([each, _Unit(_Parts(1, min(rate, sum(rates) - rate)))]))
    alone = [1 / rate for rate in (*rates, *leaving) if len(rates) > 1]
    return max(*found, *alone, 0.0)


def _time(units: Sequence[_Unit]) -> float:
    """The greatest value of 2(p-1) / rate among all divisions of the units into p parts, by Dinkelbach's method."""
    longest = 0.0
    while True:
        parts = _sum([_best(unit, longest) for unit in units])
        time = 2 * (parts.number - 1) / parts.rate
        if time <= longest * (1 + _PRECISION):
            return longest
        longest = time


def _best(unit: _Unit, time: float) -> _Parts:
    """The division of a unit into parts whose number of messages most exceeds the number that they send in `time`."""
    options = [unit.whole] if unit.whole else []
    if unit.divided:
        options.append(_sum([_best(each, time) for each in unit.divided]))
    return max(options, key=lambda parts: 2 * parts.number - time * parts.rate)


def _sum(parts: Sequence[_Parts]) -> _Parts:
    return _Parts(sum(each.number for each in parts), sum(each.rate for each in parts))
