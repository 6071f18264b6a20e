"""Drops of a switch that queues gradients by priority and, when a queue fills, drops the small ones first.

Each queue is a birth–death chain: packets come at rate λ and leave at rate μ, both at random; from `small` waiting
packets on the small ones, a share θ of all, are dropped, at `large` all are. With a = λ/μ and c = (1 − θ)·a the state
of n packets has the weight aⁿ up to `small` and a^small · c^(n − small) above, and a packet is lost as often as the
queue is in a state that drops it. With small = large = m that is M/M/1/m: (1 − a)aᵐ / (1 − aᵐ⁺¹), and 1/(m + 1) at
a = 1; the formula holds for a > 1, too. Queue i serves what the queues before it leave: μᵢ₊₁ = μᵢ · (share of the time
that queue i is empty). That is its mean rate; it comes in bursts, so that near full load the later queues lose more
than is computed here (`benchmarks/papers/thresholds.py` draws how much).

Source: Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", appendix B, with these
corrections:

- The numerator of rᵢˢ is printed ρ^θS − (θρ)^(S+1); M/M/1/m at m = θS gives ρ^θS − ρ^(θS+1).
- ρ is called the idle time; it is the utilisation λ/μ, and the idle time is 1 − ρ only where nothing is lost.
- The product in μᵢ starts at k = 0; the first queue is k = 1, and its load is ρ₁ = λ₁/μ, not λ/μ.
- 1 − ρₖ is below 0 in an overloaded queue. A queue that drops is empty for a positive share of the time, used here.
- The paper splits each queue into one of θS for the small gradients and one of L − θS for the large ones. The two
  share one queue, in which dropping the small leaves room for the large: hence the chain.
- Its sum is over the N queues but takes the impact functions of the M layers; it must be over the layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_LEAST: Final = 1e-12  # the least that a queue leaves of the switch; it is above 0, but may round to it


class QueueDrops(NamedTuple):
    """Shares of the small and of the large gradients' packets that a queue drops."""

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
      small: waiting packets from which on the small are dropped, at most `large`; an integer or an array.
      large: waiting packets at which all are dropped.
    """
    small, large = np.asarray(small, np.float64), np.asarray(large, np.float64)
    if not load:
        return QueueDrops(np.zeros_like(small), np.zeros_like(large))
    every, few = np.log(load), np.log((1 - small_share) * load)
    with np.errstate(divide="ignore", under="ignore"):
        above = _log_sum(few, large - small + 1)  # of the states from `small` on, relative to that of `small`
        total = np.logaddexp(above, _log_sum(every, small) - small * every)
        return QueueDrops(np.exp(above - total), np.exp(few * (large - small) - total))


def switch_drops(
    offered: Sequence[float], small_share: float, thresholds: Sequence[tuple[int, int]]
) -> Iterator[QueueDrops]:
    """The shares that every queue of a switch drops, the one of highest priority first.

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
