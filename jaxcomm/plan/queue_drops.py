"""Predicts the drops of a switch that queues gradients by priority. When a queue fills, it drops small gradients first.

Each queue is a birth–death chain: packets arrive at rate λ and leave at rate μ, both at random. The share θ of all
packets carries small gradients. With `small` or more waiting packets, packets with small gradients are dropped; with
`large`, all packets are dropped. Let a = λ/μ and c = (1 − θ)·a. Then the state with n waiting packets has the weight aⁿ
up to `small`, and a^small · c^(n − small) above. The probability that a packet is lost is the probability of the states
that drop it. With small = large = m this is M/M/1/m, whose loss is (1 − a)aᵐ / (1 − aᵐ⁺¹), or 1/(m + 1) at a = 1. The
formula also holds for a > 1. Queue i gets the capacity that earlier queues leave: μᵢ₊₁ = μᵢ · (share of the time that
queue i is empty). This is only the mean rate. In reality the rate varies in bursts, so near full load later queues lose
more than computed here (`benchmarks/papers/thresholds.py` simulates how much).

Source: Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", appendix B, with these
corrections:

- The numerator of rᵢˢ is printed ρ^θS − (θρ)^(S+1); M/M/1/m at m = θS gives ρ^θS − ρ^(θS+1).
- The paper calls ρ the idle time. But ρ is the utilisation λ/μ, and the idle time is 1 − ρ only where no packet is
  lost.
- The product in μᵢ starts at k = 0. But the first queue is k = 1, and its load is ρ₁ = λ₁/μ, not λ/μ.
- 1 − ρₖ is below 0 in an overloaded queue. Here this factor is the share of the time that the queue is empty, which is
  positive.
- The paper splits each queue into one of size θS for the small gradients and one of size L − θS for the large ones. In
  fact both share one queue, in which dropping small gradients leaves room for large ones. The chain models this queue.
- The paper's sum is over the N queues but takes the impact functions of the M layers. The sum must be over the layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_LEAST: Final = 1e-12  # minimum of the capacity that a queue leaves, because rounding may make it 0 or negative


class QueueDrops(NamedTuple):
    """The shares of the small gradients' packets, and of the large gradients' packets, that a queue drops."""

    small: Floats
    large: Floats

    def mean(self, small_share: float) -> Floats:
        """The share of all packets that is dropped."""
        return small_share * self.small + (1 - small_share) * self.large


def queue_drops(load: float, small_share: float, small: Any, large: Any) -> QueueDrops:
    """The shares that one queue drops.

    Args:
      load: arriving packets per packet that could leave, λ/μ.
      small_share: the share θ of packets that carry small gradients, in (0, 1).
      small: number of waiting packets from which on small gradients are dropped, at most `large`; integer or array.
      large: number of waiting packets at which all gradients are dropped; integer or array.
    """
    small, large = np.asarray(small, np.float64), np.asarray(large, np.float64)
    if not load:
        return QueueDrops(np.zeros_like(small), np.zeros_like(large))
    every, few = np.log(load), np.log((1 - small_share) * load)
    with np.errstate(divide="ignore", under="ignore"):
        above = _log_sum(few, large - small + 1)  # weight of the states from `small` on, relative to state `small`
        total = np.logaddexp(above, _log_sum(every, small) - small * every)
        return QueueDrops(np.exp(above - total), np.exp(few * (large - small) - total))


def switch_drops(
    offered: Sequence[float], small_share: float, thresholds: Sequence[tuple[int, int]]
) -> Iterator[QueueDrops]:
    """Yields the shares that each queue of a switch drops, beginning with the queue of highest priority.

    Args:
      offered: arriving packets of each queue per packet that the switch can send.
      small_share: the share of packets that carry small gradients.
      thresholds: `small` and `large` of each queue.
    """
    left = 1.0
    for arriving, (small, large) in zip(offered, thresholds, strict=True):
        lost = queue_drops(arriving / left, small_share, small, large)
        yield lost
        left = max(left - arriving * (1 - float(lost.mean(small_share))), _LEAST)


def _log_sum(log: float, terms: Floats) -> Floats:
    """The logarithm of 1 + x + … + x^(terms − 1) for x = exp(log)."""
    if log == 0:
        return np.log(terms)
    grown: Floats = np.log(-np.expm1(-np.abs(log) * terms)) - np.log(-np.expm1(-np.abs(log)))
    return max(log, 0.0) * (terms - 1) + grown
