"""Lost packets: the parts that a message sends again, and its wait before it does."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.profile import PacketLoss

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

TAIL: Final = 3  # a lost packet is missed when this many later ones have come (RFC 5681, section 3.2)


def repairs(
    packets: Ints, packet_loss: PacketLoss, bound: float | None, round_trip_s: float, rng: np.random.Generator
) -> tuple[Ints, Floats]:
    """Draws how often every message repairs its losses; every packet is lost independently of the others.

    TCP (`bound` None) sends what is lost again after a round trip when three later packets show it, and after
    its timeout when one of the last three packets, or a packet sent again, is lost. With a bound, a message is through
    when no more than that share of its packets is missing; otherwise the sender asks what is missing, which takes a
    round trip that is never lost, and sends that again. Equal draws lose equal packets under every bound, so a bound
    never sends more or waits longer than TCP. That TCP also slows down after a loss is not modelled.

    Args:
      packets: number of packets of every message.
      packet_loss: how often packets are lost, and the timeout.
      bound: the share of a message's packets that may stay lost.
      round_trip_s: seconds to a peer and back.
      rng: the source of the draws.

    Returns:
      How many packets every message sends again, and how many seconds it waits.

    Source: Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", section 4.2.3.
    """
    again, waited = np.zeros(len(packets), np.int64), np.zeros(len(packets))
    tail = np.minimum(packets, TAIL)
    lost_tail = rng.binomial(tail, packet_loss.rate)
    missing = lost_tail + rng.binomial(packets - tail, packet_loss.rate)
    allowed = np.zeros_like(packets) if bound is None else np.floor(bound * packets + 1e-9).astype(np.int64)
    timeout = round_trip_s if bound is not None else max(packet_loss.timeout_s, round_trip_s)
    wait = np.where(lost_tail > 0, timeout, round_trip_s)
    broken = np.flatnonzero(missing)  # also those within the bound: then the draws do not depend on it
    while (missing[broken] > allowed[broken]).any():
        mended = broken[missing[broken] > allowed[broken]]
        again[mended] += missing[mended]
        waited[mended] += wait[mended]
        missing[broken] = rng.binomial(missing[broken], packet_loss.rate)
        wait[broken] = timeout
        broken = broken[missing[broken] > 0]
    return again, waited
