"""A leaf–spine network in steps of one base round trip: packets leave their hosts, pass three queues, or are lost.

In a step a flow's packets pass its host's NIC, the rack's uplink to a core switch, the core's link down to the other
rack, and the link to the receiver (within a rack only the NIC and the last link). A port serves one step's worth of
packets, the rest queues, and packets beyond the buffer are lost. A flow's share of a port is rounded to whole packets,
up or down at random.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from mlt_traffic import PACKET, RACKS, Flows
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RTT_S: Final = 24e-6
SERVED: Final = 100e9 / 8 * RTT_S / PACKET  # packets that a link carries in a step
BUFFER: Final = 512 * 1024 / PACKET  # packets that a port can queue
MARK: Final = 65  # queued packets above which a port marks (ECN)
CORES: Final = 4
HEADER: Final = 64 / PACKET  # size of a packet that NDP has trimmed, in packets


class Active:
    """The active flows, one array element each. Schemes use the fields below `queues`."""

    def __init__(self, flow: Ints, packets: Floats) -> None:
        """Starts flows with these numbers of packets."""
        self.flow = flow
        self.packets = packets
        self.to_send = packets.copy()
        self.missing = np.zeros(len(flow))  # lost, and not yet retransmitted
        self.got = np.zeros(len(flow))
        self.sent = np.zeros(len(flow))  # in all, with retransmissions
        self.queues = np.zeros((3, len(flow)))  # packets at uplink, downlink and the receiver's port
        self.window = np.zeros(len(flow))
        self.threshold = np.full(len(flow), np.inf)
        self.alpha = np.ones(len(flow))
        self.wake_s = np.zeros(len(flow))
        self.timeouts = np.zeros(len(flow))
        self.resent = np.zeros(len(flow))
        self.rtt_s = np.zeros(len(flow))

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Keeps only these flows."""
        for name, values in vars(self).items():
            setattr(self, name, values[..., which])

    def join(self, other: Active) -> None:
        """Adds flows."""
        for name, values in vars(self).items():
            setattr(self, name, np.concatenate([values, getattr(other, name)], axis=-1))


class Step:
    """A step's effect on each active flow: packets sent, arrived and lost, whether marked, and the round-trip time."""

    def __init__(self, sent: Floats) -> None:
        """The state before the first port."""
        self.sent = sent
        self.came = sent
        self.lost = np.zeros(len(sent))
        self.marked = np.zeros(len(sent), dtype=bool)
        self.rtt_s = np.full(len(sent), RTT_S)


class Scheme(Protocol):
    """A transport: how much each flow may send, the orders of service and of drops, and the reaction to loss."""

    sprayed: bool  # packets are spread over all cores; otherwise each flow keeps one random core
    cuts: bool  # headers of lost packets arrive, and occupy the receiver's port
    classes: int
    slots: int
    tolerated: float  # share of a flow's packets that need not arrive

    def start(self, active: Active) -> None:
        """Sets the fields of flows that start."""

    def urgency(self, active: Active, flows: Flows) -> Ints:
        """Class of each flow; ports serve 0 first."""

    def droppable(self, urgency: Ints, rng: np.random.Generator) -> Ints:
        """Slot of each flow, below `slots`; an overflowing buffer keeps 0 first."""

    def allow(self, active: Active, now_s: float, dst: Ints, rng: np.random.Generator) -> Floats:
        """Packets that each flow may send now, at most `to_send`."""

    def react(self, active: Active, step: Step, now_s: float, rng: np.random.Generator) -> None:
        """Updates the senders after a step."""


def completion_s(flows: Flows, scheme: Scheme, rng: np.random.Generator) -> Floats:
    """Seconds from the start to the end of each flow, in whole round trips."""
    ports, sizes = _ports(flows, scheme, rng)
    needed = flows.packets - np.floor(scheme.tolerated * flows.packets)
    pushes = len(flows.ready_s)
    start = np.concatenate([np.ceil(flows.ready_s / RTT_S), np.full(pushes, np.inf)])
    awaited = np.bincount(flows.tensor[:pushes])  # pushes of each tensor that its server still lacks
    end = np.full(2 * pushes, np.inf)
    headers, nics = np.zeros(flows.hosts), np.full(flows.hosts, SERVED)
    active, now = Active(np.zeros(0, dtype=np.int64), np.zeros(0)), 0.0
    waiting = np.ones(2 * pushes, dtype=bool)
    while waiting.any() or len(active.flow):
        if not len(active.flow):
            now = max(now, start[waiting].min())
        new = np.flatnonzero(waiting & (start <= now))
        if len(new):
            waiting[new] = False
            fresh = Active(new, flows.packets[new])
            scheme.start(fresh)
            active.join(fresh)
        flow = active.flow
        src, dst = flows.src[flow], flows.dst[flow]
        urgency = scheme.urgency(active, flows)
        allowed = scheme.allow(active, now * RTT_S, dst, rng)
        share = _share(_ahead(allowed, src, urgency, flows.hosts, scheme.classes), src, urgency, nics)
        step = Step(_whole(allowed * share, rng))
        active.to_send -= step.sent
        active.sent += step.sent
        for stage, (port, width) in enumerate(zip(ports, sizes, strict=True)):
            _pass(
                active.queues[stage],
                step,
                port[flow],
                width,
                urgency,
                scheme,
                headers if stage == 2 else np.zeros_like(width),
                rng,
            )
        active.got += step.came
        if scheme.cuts:
            headers += np.bincount(dst, step.lost, flows.hosts) * HEADER
        scheme.react(active, step, now * RTT_S, rng)
        now += 1
        complete = active.got >= needed[flow]
        active.to_send[complete] = active.missing[complete] = 0  # packets in flight are no longer needed
        ended = complete & np.isinf(end[flow])
        if ended.any():
            end[flow[ended]] = now
            pushed = flows.tensor[flow[ended & (flow < pushes)]]
            awaited -= np.bincount(pushed, minlength=len(awaited))
            whole = np.unique(pushed)
            whole = whole[awaited[whole] == 0]
            start[pushes:][np.isin(flows.tensor[pushes:], whole)] = now
        over = complete & (active.queues.sum(0) == 0)
        if over.sum() > len(over) / 8:
            active.keep(~over)
    seconds: Floats = (end - start) * RTT_S
    return seconds


def _pass(
    queue: Floats,
    step: Step,
    port: Ints,
    width: Floats,
    urgency: Ints,
    scheme: Scheme,
    headers: Floats,
    rng: np.random.Generator,
) -> None:
    """Passes packets through one stage: they go on, queue or are lost. `width` is the number of links per port."""
    served, room = SERVED * width, BUFFER * width
    busy = np.minimum(headers, served)
    headers -= busy
    served -= busy
    queue += step.came
    ahead = _ahead(queue, port, urgency, len(width), scheme.classes)
    step.came = _whole(queue * _share(ahead, port, urgency, served), rng)
    queue -= step.came
    left = ahead - served[:, None]
    if (left[:, -1] > room).any():
        slot = scheme.droppable(urgency, rng)
        kept = _whole(queue * _share(_ahead(queue, port, slot, len(width), scheme.slots), port, slot, room), rng)
        step.lost += queue - kept
        queue[:] = kept
    step.marked |= left[port, -1] > MARK
    step.rtt_s += np.clip(left[port, urgency + 1], 0, room[port]) / (SERVED * width[port]) * RTT_S


def _ahead(packets: Floats, port: Ints, order: Ints, ports: int, classes: int) -> Floats:
    """Packets at each port in the classes before each class; the last column has all packets."""
    sums = np.zeros((ports, classes + 1))
    np.cumsum(np.bincount(port * classes + order, packets, ports * classes).reshape(ports, classes), 1, out=sums[:, 1:])
    return sums


def _share(ahead: Floats, port: Ints, order: Ints, room: Floats) -> Floats:
    """Share of each flow's packets for which a port has room: class by class, equal within a class."""
    left = room - ahead.T[:-1]
    load = np.maximum(ahead.T[1:] - ahead.T[:-1], 1)
    return np.clip(left / load, 0, 1)[order, port]


def _whole(packets: Floats, rng: np.random.Generator) -> Floats:
    rounded: Floats = np.floor(packets + rng.random(len(packets)))
    return rounded


def _ports(flows: Flows, scheme: Scheme, rng: np.random.Generator) -> tuple[list[Ints], list[Floats]]:
    """Port of each flow at each stage, and the links per port: with perfect spraying, four links are one port."""
    paths = 1 if scheme.sprayed else CORES
    per_rack = flows.hosts // RACKS
    path = rng.integers(paths, size=len(flows.src))
    inner = flows.src // per_rack == flows.dst // per_rack  # within a rack: these pass a port of infinite rate
    stages = [np.where(inner, RACKS * paths, host // per_rack * paths + path) for host in (flows.src, flows.dst)]
    widths = np.append(np.full(RACKS * paths, CORES / paths), np.inf)
    return [*stages, flows.dst], [widths, widths, np.ones(flows.hosts)]
