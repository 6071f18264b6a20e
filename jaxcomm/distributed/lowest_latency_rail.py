"""The rail of small calls where no plan has shares: the one of the least round trip that the kernel has measured.

A message of one segment goes to the rail with the largest share, which is the fastest by its rate, however long its
way is. Below a threshold one rail carries all in place of that, the same to all processes.

Source: "Nezha: Breaking Multi-Rail Network Barriers for Distributed DNN Training", section 4.3, equations 4 and 6: its
cold state. Nezha finds the threshold by the latencies of calls; here it follows from round trips and rates, before the
first call.
"""

from __future__ import annotations

import socket
import statistics
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from jaxcomm.ffi.shares import SharesFrom

_MIN_RTT: Final = struct.Struct("=148xI")  # tcpi_min_rtt of linux/tcp.h, in microseconds
_NO_RTT: Final = (0, 2**32 - 1)  # before there is one
_FACTOR, _LEAST_GAIN_S = 2, 20e-6  # by which a round trip must be less, beyond the differences of alike rails
_SEVERAL_SEGMENTS: Final = 128 << 10  # bytes of a message from which on it has two: kShortestSegment of segment_bytes.h


class LowestLatencyRail(NamedTuple):
    """The rail of small calls.

    Attributes:
      name: of the rail.
      gain_s: by how much its round trip is less than that of the rails which carried them otherwise.
    """

    name: str
    gain_s: float


def round_trip_s(connection: socket.socket) -> float | None:
    """The least round trip of a TCP connection so far, in seconds; None where the kernel knows none."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT.size)
    except OSError:
        return None
    microseconds: int = _MIN_RTT.unpack(info)[0] if len(info) == _MIN_RTT.size else 0
    return None if microseconds in _NO_RTT else microseconds * 1e-6


def lowest_latency_rail(
    firsts: Mapping[int, str], round_trips: Mapping[tuple[int, str], float]
) -> LowestLatencyRail | None:
    """The rail to all processes whose round trip is less than half of the first rails', if there is one.

    It is chosen by medians over the processes, the same for all of them: a thread that waits can help on one first rail
    only (`cc/transport/rails/rails.h`).

    Args:
      firsts: for each process that is reached over the network, the rail with the largest share.
      round_trips: in seconds, by process and rail, as far as they are known.
    """
    medians = {
        name: statistics.median(round_trips[process, name] for process in firsts)
        for name in dict.fromkeys(name for _, name in round_trips)
        if all((process, name) in round_trips for process in firsts)
    }
    if not medians or not all(first in round_trips for first in firsts.items()):
        return None
    least = min(medians, key=medians.__getitem__)
    today = statistics.median(round_trips[first] for first in firsts.items())
    gain_s = today - medians[least]
    return LowestLatencyRail(least, gain_s) if today > _FACTOR * medians[least] and gain_s >= _LEAST_GAIN_S else None


def with_range_for_small_calls(
    shares: Mapping[str, int], rates: Mapping[str, int], chosen: LowestLatencyRail
) -> list[SharesFrom]:
    """A process's shares: of small calls on the lowest-latency rail alone, of larger ones as they were.

    It is ahead with a message of one segment until its lower rate has cost what it gained on the way. From 128 KiB on
    messages have several segments, and are faster over several rails. Where no rail has a higher rate, it also becomes
    the first of all, which carries the messages of one segment that larger calls have.

    Args:
      shares: of one process by rail, that rail among them.
      rates: of these rails in Mbit/s; where they are not known, all alike.
      chosen: of all processes.
    """
    first = max(shares, key=shares.__getitem__)
    if first == chosen.name:
        return [SharesFrom(0, shares)]
    alone = SharesFrom(0, {name: sum(shares.values()) * (name == chosen.name) for name in shares})
    if rates[chosen.name] >= rates[first]:
        # Shares of one rate are 1 apart.
        most = {**shares, chosen.name: shares[chosen.name] + 2, first: shares[first] - 2}
        return [alone, SharesFrom(_SEVERAL_SEGMENTS, most)]
    longer_s = 8e-6 / rates[chosen.name] - 8e-6 / rates[first]  # a byte takes
    threshold = min(round(chosen.gain_s / 2 / longer_s), _SEVERAL_SEGMENTS)
    return [alone, SharesFrom(threshold, shares)]  # above 0: a byte takes 8 µs at most, the least gain is 10 one way
