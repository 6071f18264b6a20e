"""Chooses the fill levels at which a switch's queues drop small gradients, and at which they drop all gradients.

The levels have the least impact on training. Exact dynamic programming over the queues, in order of priority, finds
them. A state is the buffer space used so far and the capacity that queues of higher priority leave. Thresholds are
multiples of `step` packets. The capacity that is left is rounded down to a multiple of 1/1024 of the total, so that no
more packets are lost than planned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.errors import ProfileError
from jaxcomm.plan.queue_drops import Floats, QueueDrops, queue_drops

STEPS: Final = 128  # queue sizes to try; in a buffer of at most this number of packets, a step is one packet
LARGEST: Final = 8192  # maximum number of packets of buffer space that the queues get
CAPACITY: Final = 1024  # number of units into which the switch's total capacity is divided

Impact = Callable[[QueueDrops], Floats]


class _Option(NamedTuple):
    """A queue's thresholds in steps, and the capacity that the queue gets (`before`) and leaves (`after`)."""

    before: int
    small: int
    large: int
    after: int
    cost: float


class _State(NamedTuple):
    """The least cost of the queues so far, and the index of the last queue's option.

    Both are indexed by the buffer space, in steps, that these queues may use.
    """

    cost: Floats
    option: NDArray[np.int64]


class _Search(NamedTuple):
    """The parameters common to all queues."""

    step: int
    room: int
    small_share: float
    bound: float

    def options(self, offered: float, before: int, impact: Impact, last: bool) -> list[_Option]:
        """Thresholds that drop at most the share `bound`: the cheapest for each buffer space used and capacity left."""
        if not offered:
            return [_Option(before, 0, 0, before, 0.0)]
        if not before:
            return []
        large, small = np.tril_indices(self.room + 1)
        lost = queue_drops(offered * CAPACITY / before, self.small_share, small * self.step, large * self.step)
        mean = lost.mean(self.small_share)
        after = np.floor(before - offered * (1 - mean) * CAPACITY + 1e-9).clip(0).astype(int) * (not last)
        cost = np.where(mean <= self.bound, impact(lost), np.inf)
        order = np.lexsort((cost, large, after))
        _, first = np.unique((after * (self.room + 1) + large)[order], return_index=True)
        found, least = [], dict.fromkeys(after.tolist(), np.inf)
        for i in order[first]:
            if cost[i] < least[int(after[i])]:
                least[int(after[i])] = cost[i]
                found.append(_Option(before, int(small[i]), int(large[i]), int(after[i]), float(cost[i])))
        return found


def thresholds(
    packets: int, offered: Sequence[float], small_share: float, bound: float, impacts: Sequence[Impact]
) -> list[tuple[int, int]]:
    """The thresholds (small, large) of every queue, in packets, with the least total impact.

    Args:
      packets: size of the buffer; the `large` thresholds of all queues together are at most this size.
      offered: for each queue, by priority, the packets that arrive per packet that the switch can send.
      small_share: the share of packets with small gradients.
      bound: the greatest share of its packets that a queue may lose.
      impacts: the cost of each queue's drops.

    Raises:
      ProfileError: no thresholds keep the drops within the bound.
    """
    step = math.ceil(min(packets, LARGEST) / STEPS)
    search = _Search(step, min(packets, LARGEST) // step, small_share, bound)
    states = {CAPACITY: np.zeros(search.room + 1)}
    history: list[tuple[list[_Option], dict[int, _State]]] = []
    for queue, (arriving, impact) in enumerate(zip(offered, impacts, strict=True)):
        last = queue == len(offered) - 1
        options = [option for before in sorted(states) for option in search.options(arriving, before, impact, last)]
        history.append((options, _advance(states, options)))
        states = {left: state.cost for left, state in history[-1][1].items()}
    best = min(sorted(states), key=lambda left: states[left][-1], default=None)
    if best is None or not np.isfinite(states[best][-1]):
        raise ProfileError(
            f"tolerance.switch: with {packets} packets of buffer and a load of {sum(offered):.3g} no thresholds keep "
            f"the drops of every queue at or below {bound:.3g}.\n"
            "  Cure: a larger buffer, less load, a greater bound, or a profile without tolerance.switch."
        )
    found: list[tuple[int, int]] = []
    left, used = best, search.room
    for options, reached in reversed(history):
        option = options[int(reached[left].option[used])]
        found.append((option.small * step, option.large * step))
        left, used = option.before, used - option.large
    return found[::-1]


def _advance(states: dict[int, Floats], options: Sequence[_Option]) -> dict[int, _State]:
    """The states after one more queue."""
    reached: dict[int, _State] = {}
    for index, option in enumerate(options):
        before = states[option.before]
        if option.after not in reached:
            reached[option.after] = _State(np.full_like(before, np.inf), np.full(len(before), -1))
        cost, chosen = (column[option.large :] for column in reached[option.after])
        candidate = before[: len(cost)] + option.cost
        better = candidate < cost
        cost[better], chosen[better] = candidate[better], index
    return reached
