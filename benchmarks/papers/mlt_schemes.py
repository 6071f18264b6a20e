"""The five transports of the figure, reduced to what decides flow completion times: window, order, drops and recovery.

Sources: Alizadeh et al., "Data Center TCP" (2010); Bai et al., "Information-Agnostic Flow Scheduling" (PIAS, 2015);
Alizadeh et al., "pFabric" (2013); Handley et al., "Re-architecting Datacenter Networks" (NDP, 2017); Wang et al.,
"Towards Domain-Specific Network Transport for Distributed DNN Training" (MLT, 2024), sections 4.2 and 6.2.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from mlt_fabric import BUFFER, RTT_S, SERVED, Active, Floats, Ints, Step
from mlt_traffic import Flows

RTO_S: Final = 10e-3
INITIAL: Final = 10  # packets of TCP's first window
LEAST: Final = 2  # packets to which marks and fast retransmissions may shrink a window (Linux)
DUPLICATES: Final = 3  # acknowledgements of later packets that show a loss
QUEUES: Final = 8  # of a port


class Dctcp:
    """Windows that shrink with the share of marked packets; three later packets show a loss, or else a timeout."""

    sprayed = False
    cuts = False
    classes = 1
    slots = 16
    tolerated = 0.0

    def start(self, active: Active) -> None:
        active.window[:] = INITIAL

    def urgency(self, active: Active, flows: Flows) -> Ints:
        return np.zeros(len(active.flow), dtype=np.int64)

    def droppable(self, urgency: Ints, rng: np.random.Generator) -> Ints:
        """Tail drop: of windows that come back to back in an order by chance, the last find no room."""
        return rng.integers(self.slots, size=len(urgency))

    def allow(self, active: Active, now_s: float, dst: Ints, rng: np.random.Generator) -> Floats:
        room = np.floor(active.window) - active.queues.sum(0)
        return np.where(now_s < active.wake_s, 0, np.clip(room, 0, active.to_send))

    def react(self, active: Active, step: Step, now_s: float, rng: np.random.Generator) -> None:
        """DCTCP's fluid equations per acknowledged packet; a loss halves the window, a timeout leaves one packet."""
        came = np.where(now_s < active.wake_s, 0, step.came)  # what comes during a timeout acknowledges nothing new
        part = np.minimum(came / active.window, 1)
        active.alpha += part / 16 * (step.marked - active.alpha)
        grown = active.window + np.where(active.window < active.threshold, came, part)
        shrunk = active.window * (1 - part * active.alpha / 2)
        active.window = np.where(step.marked, np.maximum(shrunk, np.minimum(active.window, LEAST)), grown)
        marked = step.marked & (came > 0)
        active.threshold[marked] = active.window[marked]
        active.timeouts[(came > 0) & (step.lost == 0)] = 0
        resent, active.resent = active.resent, step.lost
        at = np.flatnonzero(step.lost)
        if len(at):
            self._recover(active, step, resent, at, now_s, rng)

    def _recover(
        self, active: Active, step: Step, resent: Floats, at: Ints, now_s: float, rng: np.random.Generator
    ) -> None:
        """A loss is seen by what arrives after it; one of a packet sent again, by a timeout only."""
        lost = step.lost[at]
        flight = step.came[at] + lost + active.queues[:, at].sum(0)
        before = np.floor(
            (flight - lost + 1) * (1 - rng.random(len(at)) ** (1 / lost))
        )  # packets before the first lost
        later = flight - lost - np.where(active.to_send[at] > 0, 0, before)
        again = rng.random(len(at)) > (1 - np.minimum(resent[at] / flight, 1)) ** lost
        awake = now_s >= active.wake_s[at]
        silent = awake & ((later < DUPLICATES) | again)
        active.to_send[at] += lost
        active.window[at] = np.where(awake, np.maximum(active.window[at] / 2, LEAST), active.window[at])
        active.threshold[at] = np.where(awake, active.window[at], active.threshold[at])
        asleep = at[silent]
        active.window[asleep] = 1
        active.wake_s[asleep] = now_s + RTO_S * 2 ** active.timeouts[asleep]
        active.timeouts[asleep] += 1


class Pias(Dctcp):
    """DCTCP whose packets sink from queue to queue with what their flow has sent; thresholds split the sizes evenly."""

    classes = QUEUES

    def urgency(self, active: Active, flows: Flows) -> Ints:
        queue: Ints = np.searchsorted(flows.octiles, active.sent)
        return queue


class Pfabric:
    """Windows of a round trip, the flow with the least left first, the one with the most left dropped; timeouts only.

    Least left is by powers of two.
    """

    sprayed = True
    cuts = False
    classes = slots = 16
    tolerated = 0.0

    def start(self, active: Active) -> None:
        active.window[:] = SERVED

    def urgency(self, active: Active, flows: Flows) -> Ints:
        return np.log2(np.maximum(active.packets - active.got, 1)).astype(np.int64)

    def droppable(self, urgency: Ints, rng: np.random.Generator) -> Ints:
        return urgency

    def allow(self, active: Active, now_s: float, dst: Ints, rng: np.random.Generator) -> Floats:
        late = (active.missing > 0) & (now_s >= active.wake_s)
        active.to_send[late] += active.missing[late]
        active.missing[late] = 0
        active.threshold[late] = np.maximum(active.window[late] / 2, LEAST)
        active.window[late] = 1
        room: Floats = np.floor(active.window) - active.queues.sum(0) - active.missing
        return np.clip(room, 0, active.to_send)

    def react(self, active: Active, step: Step, now_s: float, rng: np.random.Generator) -> None:
        part = step.came / active.window
        active.window = np.minimum(active.window + np.where(active.window < active.threshold, step.came, part), SERVED)
        active.wake_s[(step.lost > 0) & (active.missing == 0)] = now_s + RTO_S
        active.missing += step.lost


class Ndp:
    """A first window at line rate, then what receivers pull at theirs; a cut packet is sent again when it is pulled."""

    sprayed = True
    cuts = True
    classes = slots = 1
    tolerated = 0.0

    def start(self, active: Active) -> None:
        active.window[:] = SERVED  # what may be sent; `alpha` is what waits for a pull
        active.alpha[:] = 0

    def urgency(self, active: Active, flows: Flows) -> Ints:
        return np.zeros(len(active.flow), dtype=np.int64)

    def droppable(self, urgency: Ints, rng: np.random.Generator) -> Ints:
        return urgency

    def allow(self, active: Active, now_s: float, dst: Ints, rng: np.random.Generator) -> Floats:
        """A receiver pulls from its flows in turn; what one does not need is shared by the others."""
        turn = np.minimum(active.alpha, (SERVED / np.maximum(np.bincount(dst, active.alpha > 0), 1))[dst])
        more = active.alpha - turn
        share = np.minimum((SERVED - np.bincount(dst, turn)) / np.maximum(np.bincount(dst, more), 1), 1)
        pulled = np.minimum(np.floor(turn + more * share[dst] + rng.random(len(dst))), active.alpha)
        active.alpha -= pulled
        active.window += pulled
        return np.minimum(active.window, active.to_send)

    def react(self, active: Active, step: Step, now_s: float, rng: np.random.Generator) -> None:
        active.window -= step.sent
        active.to_send += step.lost
        active.alpha = np.minimum(active.alpha + step.came + step.lost, active.to_send)


class Mlt:
    """Rates steered by delay, front layers first, back layers kept; a flow ends when all but 10 % has come.

    What is lost is sent again, a round trip later, when all has been sent once. The delays between which a rate holds
    are those of the paper's 25 Gbps testbed (12.5 and 125 µs, 40 Mbps per acknowledgement of ten packets) as packets
    queued: a quarter of them at 100 Gbps, on top of the base round trip. A lost packet counts as one that waited for a
    full buffer: the paper does not say what a flow does whose packets are all lost.
    """

    sprayed = True
    cuts = False
    classes = slots = QUEUES
    tolerated = 0.1
    heeds_loss = True
    low_s = RTT_S + 12.5e-6 / 4
    high_s = RTT_S + 125e-6 / 4
    increase = 4 * 40e6 / 100e9 * SERVED
    decrease = 0.8
    floor = 10e6 / 100e9 * SERVED  # ours, so that a rate can rise again

    def start(self, active: Active) -> None:
        active.window[:] = SERVED
        active.rtt_s[:] = RTT_S

    def urgency(self, active: Active, flows: Flows) -> Ints:
        return (flows.front[active.flow] * QUEUES).astype(np.int64)

    def droppable(self, urgency: Ints, rng: np.random.Generator) -> Ints:
        return QUEUES - 1 - urgency

    def allow(self, active: Active, now_s: float, dst: Ints, rng: np.random.Generator) -> Floats:
        return np.minimum(np.floor(active.window + rng.random(len(dst))), active.to_send)

    def react(self, active: Active, step: Step, now_s: float, rng: np.random.Generator) -> None:
        acknowledged, rtt_s = step.came / 10, step.rtt_s
        if self.heeds_loss:
            acknowledged = acknowledged + step.lost / 10
            rtt_s = np.where(step.lost > 0, np.maximum(rtt_s, RTT_S * (1 + BUFFER / SERVED)), rtt_s)
        slower = active.window * (1 - self.decrease * (1 - self.high_s / rtt_s)) ** acknowledged
        faster = active.window + self.increase * acknowledged
        rising = (rtt_s < self.low_s) | (rtt_s < active.rtt_s)
        rate = np.where(rtt_s > self.high_s, slower, np.where(rising, faster, active.window))
        active.window = np.clip(rate, self.floor, SERVED)
        active.rtt_s = rtt_s
        active.missing += step.lost
        again = active.to_send == 0
        active.to_send[again] = active.missing[again]
        active.missing[again] = 0


class MltDelay(Mlt):
    """MLT to the letter of its section 4.2.3: only what came is acknowledged and steers the rate."""

    heeds_loss = False


SCHEMES: Final = {
    "DCTCP": Dctcp(),
    "PIAS": Pias(),
    "pFabric": Pfabric(),
    "NDP": Ndp(),
    "MLT": Mlt(),
    "MLT by delay only": MltDelay(),
}
