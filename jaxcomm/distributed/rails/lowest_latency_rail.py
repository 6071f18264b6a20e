"""Chooses the rail for small calls if no plan has shares: the rail with the lowest RTT that the kernel has measured.

By default a message of one segment goes to the rail with the largest share. That rail has the highest rate, but may
have a long RTT. This module chooses one rail that carries all messages of calls below a threshold, to all processes.

Source: "Nezha: Breaking Multi-Rail Network Barriers for Distributed DNN Training", section 4.3, equations 4 and 6 (the
cold state). Nezha finds the threshold from latencies of calls. This module computes the threshold, in bytes, from RTTs
and rates before the first call.
"""

from __future__ import annotations

import socket
import statistics
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from jaxcomm.ffi.shares import SharesFrom

_MIN_RTT: Final = struct.Struct("=148xI")  # tcpi_min_rtt of linux/tcp.h, in microseconds
_NO_RTT: Final = (0, 2**32 - 1)  # values of the field before the first measurement
_FACTOR, _LEAST_GAIN_S = 2, 20e-6  # required advantage in RTT, as factor and time; RTTs of like rails differ by less
_SEVERAL_SEGMENTS: Final = 128 << 10  # smallest message of two segments; see kShortestSegment in segment_bytes.h


class LowestLatencyRail(NamedTuple):
    """The rail that carries small calls.

    Attributes:
      name: the rail's name.
      gain_s: the RTT of the rails that would otherwise carry small calls, minus this rail's RTT.
    """

    name: str
    gain_s: float


def round_trip_s(connection: socket.socket) -> float | None:
    """Returns the lowest RTT of a TCP connection so far, in seconds; None if the kernel knows none."""
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT.size)
    except OSError:
        return None
    microseconds: int = _MIN_RTT.unpack(info)[0] if len(info) == _MIN_RTT.size else 0
    return None if microseconds in _NO_RTT else microseconds * 1e-6


def lowest_latency_rail(
    firsts: Mapping[int, str], round_trips: Mapping[tuple[int, str], float]
) -> LowestLatencyRail | None:
    """Returns the rail with the lowest RTT, or None if its gain is too small.

    The gain suffices if this RTT is less than half the RTT of the rails in `firsts`, and at least 20 µs lower. RTTs are
    medians over the processes, because one rail must serve all processes: a thread can wait on only one rail
    (`cc/transport/rails/rails.h`).

    Args:
      firsts: the rail with the largest share, for each process that is reached over the network.
      round_trips: known RTTs in seconds, by process and rail.
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
    """Returns the shares to a process. Small calls use only the lowest-latency rail; larger calls keep their shares.

    A message of one segment is faster on the lowest-latency rail up to a size. Above this size, the rail's lower rate
    costs more time than its lower RTT saves. From 128 KiB on, messages have several segments, and are faster over
    several rails. If no rail has a higher rate, the lowest-latency rail also gets the largest share, so it carries the
    one-segment messages of larger calls.

    Args:
      shares: the shares to the process by rail, including the lowest-latency rail.
      rates: the rates of these rails in Mbit/s; all equal if unknown.
      chosen: the lowest-latency rail, the same for all processes.
    """
    first = max(shares, key=shares.__getitem__)
    if first == chosen.name:
        return [SharesFrom(0, shares)]
    alone = SharesFrom(0, {name: sum(shares.values()) * (name == chosen.name) for name in shares})
    if rates[chosen.name] >= rates[first]:
        # Shares of equal rates differ by at most 1, so moving 2 units makes the chosen rail's share the largest.
        most = {**shares, chosen.name: shares[chosen.name] + 2, first: shares[first] - 2}
        return [alone, SharesFrom(_SEVERAL_SEGMENTS, most)]
    longer_s = 8e-6 / rates[chosen.name] - 8e-6 / rates[first]  # seconds per byte
    threshold = min(round(chosen.gain_s / 2 / longer_s), _SEVERAL_SEGMENTS)
    # The threshold is above 0, because a byte takes at most 8 µs, and half the gain is at least 10 µs.
    return [alone, SharesFrom(threshold, shares)]
