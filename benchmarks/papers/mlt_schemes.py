"""The figure's five transports, reduced to the parts that decide flow completion times: window, order, drops, recovery.

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
LEAST: Final = 2  # packets of the smallest window after marks and fast retransmissions (Linux)
DUPLICATES: Final = 3  # acknowledgements of later packets that show a loss
QUEUES: Final = 8  # queues of a port


class Dctcp:
    """Windows shrink with the share of marked packets. Three later packets reveal a loss, otherwise a timeout does."""

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
        """Tail drop: windows arrive back to back in random order, and the last ones find no room."""
        return rng.integers(self.slots, size=len(urgency))

    def allow(self, active: Active, now_s: float, dst: Ints, rng: np.random.Generator) -> Floats:
        room = np.floor(active.window) - active.queues.sum(0)
        return np.where(now_s < active.wake_s, 0, np.clip(room, 0, active.to_send))

    def react(self, active: Active, step: Step, now_s: float, rng: np.random.Generator) -> None:
        """DCTCP's fluid equations per acknowledged packet; a loss halves the window, a timeout leaves one packet."""
        came = np.where(now_s < active.wake_s, 0, step.came)  # packets during a timeout acknowledge nothing new
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
        """Later arrivals reveal a loss. Only a timeout reveals the loss of a retransmitted packet."""
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
    """DCTCP that lowers a flow's priority as it sends more; the thresholds split the flows' sizes evenly."""

    classes = QUEUES

    def urgency(self, active: Active, flows: Flows) -> Ints:
        queue: Ints = np.searchsorted(flows.octiles, active.sent)
        return queue


class Pfabric:
    """Windows of one round trip. Ports serve the flow with the least left first, and drop the one with the most left.

    Only timeouts reveal losses. Remaining sizes are compared by powers of two.
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
    """Flows send a window at line rate, then as receivers pull. A trimmed packet is retransmitted when it is pulled."""

    sprayed = True
    cuts = True
    classes = slots = 1
    tolerated = 0.0

    def start(self, active: Active) -> None:
        active.window[:] = SERVED  # packets that may be sent; `alpha` counts those that wait for a pull
        active.alpha[:] = 0

    def urgency(self, active: Active, flows: Flows) -> Ints:
        return np.zeros(len(active.flow), dtype=np.int64)

    def droppable(self, urgency: Ints, rng: np.random.Generator) -> Ints:
        return urgency

    def allow(self, active: Active, now_s: float, dst: Ints, rng: np.random.Generator) -> Floats:
        """A receiver pulls from its flows in turn. If a flow needs less than its share, the others get the rest."""
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
    """Delay controls rates. Front layers are served first, back layers dropped last. A flow ends when 90 % has come.

    After all packets have been sent once, lost ones are retransmitted a round trip later. The delay thresholds are the
    paper's for 25 Gbps (12.5 and 125 µs) as queued packets: a quarter of these at 100 Gbps, plus the base round trip.
    The rate rises by four times the paper's 40 Mbps per acknowledgement of ten packets. A lost packet counts as one
    that waited for a full buffer, because the paper does not say how a flow reacts if all its packets are lost.
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
    """MLT exactly as in section 4.2.3: only packets that arrived are acknowledged and control the rate."""

    heeds_loss = False


SCHEMES: Final = {
    "DCTCP": Dctcp(),
    "PIAS": Pias(),
    "pFabric": Pfabric(),
    "NDP": Ndp(),
    "MLT": Mlt(),
    "MLT by delay only": MltDelay(),
}
