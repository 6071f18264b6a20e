"""Lost packets: the number of packets that a message retransmits, and the time that the message waits for them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.profile import PacketLoss

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

TAIL: Final = 3  # a loss is noticed when this many later packets have arrived (RFC 5681, section 3.2)


def repairs(
    packets: Ints, packet_loss: PacketLoss, bound: float | None, round_trip_s: float, rng: np.random.Generator
) -> tuple[Ints, Floats]:
    """Draws the lost packets of every message. Every packet is lost independently of all other packets.

    TCP (`bound` None) retransmits lost packets after a round trip if three later packets show the loss, and after its
    timeout if one of the last three packets, or a retransmitted packet, is lost. With a bound, a message is complete
    when at most the share `bound` of its packets is missing. If more packets are missing, the sender asks which packets
    these are, and retransmits them. This question takes a round trip, and is never lost. With equal draws the same
    packets are lost under every bound. So with a bound, a message never sends more packets and never waits longer than
    with TCP. TCP's congestion control is not modelled.

    Args:
      packets: number of packets of every message.
      packet_loss: the rate at which packets are lost, and the timeout.
      bound: the share of a message's packets that may stay lost.
      round_trip_s: seconds to a peer and back.
      rng: the source of the draws.

    Returns:
      The number of packets that every message retransmits, and the seconds for which every message waits.

    Source: Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", section 4.2.3.
    """
    again, waited = np.zeros(len(packets), np.int64), np.zeros(len(packets))
    tail = np.minimum(packets, TAIL)
    lost_tail = rng.binomial(tail, packet_loss.rate)
    missing = lost_tail + rng.binomial(packets - tail, packet_loss.rate)
    allowed = np.zeros_like(packets) if bound is None else np.floor(bound * packets + 1e-9).astype(np.int64)
    timeout = round_trip_s if bound is not None else max(packet_loss.timeout_s, round_trip_s)
    wait = np.where(lost_tail > 0, timeout, round_trip_s)
    broken = np.flatnonzero(missing)  # includes messages within the bound, so that the draws do not depend on the bound
    while (missing[broken] > allowed[broken]).any():
        mended = broken[missing[broken] > allowed[broken]]
        again[mended] += missing[mended]
        waited[mended] += wait[mended]
        missing[broken] = rng.binomial(missing[broken], packet_loss.rate)
        wait[broken] = timeout
        broken = broken[missing[broken] > 0]
    return again, waited
