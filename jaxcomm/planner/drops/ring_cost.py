"""The expected time of a ring allreduce over links that lose packets at random.

Lost packets are all retransmitted, or some are given up. Every round waits for the slowest rank. Loss bursts and
congestion are left to simulations.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from jaxcomm.profile import PacketLoss

EXACT: Final = 65536  # with more packets in a message, the number of losses is taken as normally distributed
_NEGLIGIBLE: Final = 1e-15
_DUPLICATES: Final = 3  # number of later packets after which TCP detects a loss before its timeout (RFC 5681)
_REPEAT: Final = 2  # latencies per retransmission without a timeout: one for the acknowledgement, one for the packet
_QUERY: Final = 3  # latencies per requested retransmission: one each for the query, the reply and the packets


def reliable(ranks: int, nbytes: int, alpha: float, beta: float, packet_loss: PacketLoss | None) -> float:
    """Seconds if all packets are delivered, as by TCP.

    A lost packet that three others follow is retransmitted at once. If a packet is one of the last three, or is lost
    again, it is retransmitted after a timeout. A round waits for all timeouts of the packet that has the most timeouts.

    Args:
      ranks: number of ranks.
      nbytes: bytes of one rank's buffer.
      alpha: seconds per round.
      beta: seconds per byte.
      packet_loss: the links' packet loss; None: packets are not lost, or their loss costs nothing.
    """
    message, rate = nbytes / ranks, packet_loss.rate if packet_loss else 0.0
    seconds = alpha + message * beta / (1 - rate)
    if packet_loss and rate:
        packets = math.ceil(message / packet_loss.packet_bytes)
        last = min(packets, _DUPLICATES)
        seconds += _any((packets - last) * ranks, rate) * _REPEAT * alpha
        # `missing` is the probability that one of the last packets needs another timeout. An earlier packet needs this
        # timeout only if it is lost once more.
        missing = rate
        while True:
            early, late = _any((packets - last) * ranks, missing * rate), _any(last * ranks, missing)
            if (waiting := early + late - early * late) <= _NEGLIGIBLE:
                break
            seconds += waiting * packet_loss.timeout_s
            missing *= rate
    return 2 * (ranks - 1) * seconds


def bounded(ranks: int, nbytes: int, alpha: float, beta: float, packet_loss: PacketLoss | None, share: float) -> float:
    """Seconds if a message is complete although up to the share `share` of it is missing.

    If more is missing, the receiver requests the missing packets. Without losses this is the time of a ring over a
    buffer that is smaller by this share.

    Args:
      ranks: number of ranks.
      nbytes: bytes of one rank's buffer.
      alpha: seconds per round.
      beta: seconds per byte.
      packet_loss: the links' packet loss; None: packets are not lost, or their loss costs nothing.
      share: share of the buffer that may be lost.
    """
    message, rate = nbytes / ranks, packet_loss.rate if packet_loss else 0.0
    seconds = alpha + message * beta * min(1.0, (1 - share) / (1 - rate))
    if packet_loss and rate:
        packets, missing = math.ceil(message / packet_loss.packet_bytes), rate
        while (again := _any(ranks, _more_than(math.floor(share * packets), packets, missing))) > _NEGLIGIBLE:
            seconds += again * (_QUERY * alpha + missing * message * beta)
            missing *= rate
    return 2 * (ranks - 1) * seconds


def _any(times: int, probability: float) -> float:
    """The probability that an event of this probability happens at least once in `times` independent trials."""
    return -math.expm1(times * math.log1p(-probability)) if probability < 1 else 1.0


def _more_than(allowed: int, packets: int, rate: float) -> float:
    """The probability that more than `allowed` of the packets are lost."""
    if packets > EXACT:
        deviation = math.sqrt(packets * rate * (1 - rate))
        return math.erfc((allowed + 0.5 - packets * rate) / (deviation * math.sqrt(2))) / 2
    counts = np.arange(packets)
    logs = np.concatenate([[0.0], np.cumsum(np.log((packets - counts) / (counts + 1)))])
    logs += np.arange(packets + 1) * math.log(rate) + np.arange(packets, -1, -1) * math.log1p(-rate)
    return min(1.0, float(np.exp(logs[allowed + 1 :]).sum()))
