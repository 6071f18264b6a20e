"""The cluster that profile, planner, plan and simulator share: hosts, racks, uplinks, NICs, and how long a schedule
occupies them.

May be imported by everybody but schedules; imports those and values.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Final, Literal, NamedTuple, Self

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import Field

from jaxcomm.schedules import Op, Schedule
from jaxcomm.values import Value

SOLVED: Final = 16  # ranks up to which a schedule is solved for its network, and every transfer timed on its own

STAGES: Final = 4  # shared links on the way of a message: its host's NIC, its rack's uplink, and the same at the end

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
PortKind = Literal["send", "receive", "NIC out", "NIC in"]
Times = defaultdict[tuple[int, int], float]


class Port(NamedTuple):
    """What carries one transfer at a time: `place` is a rank, or the host when its ranks share a NIC."""

    kind: PortKind
    place: int


class Topology(Value):
    """Hosts of ranks, with fast links inside and slow ones between.

    A rank sends one chunk and receives one at a time within its host and, independently of that, through a network
    NIC, which is its own (`nic` "rank") or shared by the ranks of its host ("host"); a NIC works in both directions
    at once. `hosts[r]` is the host of rank r; a byte between hosts takes `slow` times as long as one within.
    """

    hosts: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=65536, strict=True)], ...], Field(fail_fast=True, min_length=2)
    ]
    nic: Literal["rank", "host"]
    slow: Annotated[float, Field(ge=1, le=1e6, strict=True, allow_inf_nan=False)]

    @pydantic.model_validator(mode="after")
    def _hosts_are_numbered_as_they_appear(self) -> Self:
        known = 0
        for rank, host in enumerate(self.hosts):
            if host > known:
                raise ValueError(
                    f"topology.hosts[{rank}] is {host}; hosts are numbered as they appear, so it is at most {known}"
                )
            known = max(known, host + 1)
        return self

    def crosses(self, src: int, dst: int) -> bool:
        """Whether the two ranks are on different hosts."""
        return self.hosts[src] != self.hosts[dst]

    def ports(self, src: int, dst: int) -> tuple[Port, Port]:
        """The sender's and the receiver's port that a transfer occupies."""
        if not self.crosses(src, dst):
            return Port("send", src), Port("receive", dst)
        shared = self.nic == "host"
        return Port("NIC out", self.hosts[src] if shared else src), Port("NIC in", self.hosts[dst] if shared else dst)

    def cost(self, src: int, dst: int) -> float:
        """Time of a chunk between the two ranks, in units of that within a host."""
        return self.slow if self.crosses(src, dst) else 1.0

    def seconds(self, schedule: Schedule, nbytes: int, alpha: float, beta: float) -> float:
        """Predicted time after the late rank's arrival: `Schedule.seconds` with this network's volume.

        Of more than `SOLVED` ranks the volume is `busiest`, else `volume`.

        Args:
          schedule: the schedule.
          nbytes: size of the buffer s.
          alpha: seconds per round.
          beta: seconds per byte on a link within a host.
        """
        chunks = (volume if len(self.hosts) <= SOLVED else busiest)(schedule, self)
        return schedule.num_rounds * alpha + chunks / schedule.num_chunks * nbytes * beta


@dataclass(frozen=True)
class Cluster:
    """Links of α seconds and β seconds per byte, and what differs between them; by default all are alike.

    A rank has a port in each direction; with a `topology` also one for other hosts. What ranks share, the NIC of a
    host and the uplink of a rack (each in both directions), serves one message after the other.

    Attributes:
      alpha: seconds per message.
      beta: seconds per byte; with a topology, on a link within a host.
      topology: hosts, and what a byte between them takes.
      racks: the rack of every rank; () means that all are in one.
      uplinks: by rack, how many times as long a byte takes through its uplink as between two hosts of the rack.
      nics: by rank, how many times as long a byte takes through its NIC; () means that none is slower.
    """

    alpha: float
    beta: float
    topology: Topology | None = None
    racks: tuple[int, ...] = ()
    uplinks: tuple[float, ...] = ()
    nics: tuple[float, ...] = ()

    def remote(self, src: Ints, dst: Ints) -> NDArray[np.bool_]:
        """Which messages leave their host through a NIC that is not the port of messages within it."""
        if self.topology is None:
            return np.zeros(len(src), bool)
        host = np.array(self.topology.hosts)
        crossing: NDArray[np.bool_] = host[src] != host[dst]
        return crossing

    def port_beta(self, src: Ints, dst: Ints) -> Floats:
        """Seconds per byte of every message at the slower of its two ports."""
        beta = np.full(len(src), self.beta)
        remote = self.remote(src, dst)
        if self.topology:
            beta[remote] *= self.topology.slow
        if self.nics:
            nic = np.array(self.nics)
            through = remote if self.topology else np.ones(len(src), bool)
            beta[through] *= np.maximum(nic[src], nic[dst])[through]
        return beta

    def shared(self, src: Ints, dst: Ints) -> tuple[Ints, Floats]:
        """The shared links on the way of every message, and their seconds per byte, as [STAGES, messages]; -1: none."""
        link = np.full((STAGES, len(src)), -1)
        beta = np.zeros((STAGES, len(src)))
        between = self.beta
        if self.topology:
            between *= self.topology.slow
            if self.topology.nic == "host":
                remote, host = self.remote(src, dst), np.array(self.topology.hosts)
                nic = np.array(self.nics or [1.0] * len(host))
                for stage, end in ((0, src), (3, dst)):
                    link[stage] = np.where(remote, host[end], -1)
                    beta[stage] = between * nic[end]
        if self.racks:
            rack, uplink = np.array(self.racks), np.array(self.uplinks)
            crosses = rack[src] != rack[dst]
            for stage, end in ((1, src), (2, dst)):
                link[stage] = np.where(crosses, rack[end], -1)
                beta[stage] = between * uplink[rack[end]]
        # Every stage has links of its own, numbered one after the other.
        first = np.cumsum([0, *(link.max(axis=1, initial=-1) + 1)])[:STAGES, None]
        return np.where(link < 0, -1, link + first), beta


@functools.lru_cache(maxsize=1024)
def volume(schedule: Schedule, topology: Topology) -> float:
    """The volume of a schedule on a network, in chunks over a fast link; takes the place of `Schedule.volume`.

    A transfer starts when its chunk has arrived at the sender, nobody needs what it overwrites, and both its ports
    are done with what comes before it in the schedule; no rank waits for the end of a round. Both sides of an exchange
    start together. As no chain of transfers is longer than the rounds (of one port each), adding `num_rounds·α` bounds
    the time with latency from above.
    """
    free: defaultdict[Port, float] = defaultdict(float)
    written: Times = defaultdict(float)  # (rank, chunk) → when its last value is there
    read: Times = defaultdict(float)  # (rank, chunk) → when its last reader has it
    end = 0.0
    for _, together in itertools.groupby(schedule.table().tolist(), key=itemgetter(0)):
        ends: list[tuple[int, int, int, float]] = []
        transfers = {(src, dst, chunk): op for _, src, dst, chunk, op in together}
        for (src, dst, chunk), op in transfers.items():
            exchange = op == Op.REDUCE == transfers.get((dst, src, chunk))
            if exchange and src > dst:
                continue
            links = [(src, dst), (dst, src)][: 1 + exchange]
            ports = [port for link in links for port in topology.ports(*link)]
            values = (written[src, chunk], written[dst, chunk], read[dst, chunk], exchange * read[src, chunk])
            done = max(*values, *(free[port] for port in ports)) + topology.cost(src, dst)
            free.update(dict.fromkeys(ports, done))
            ends += [(*link, chunk, done) for link in links]
            end = max(end, done)
        for src, dst, chunk, done in ends:  # only now: the transfers of one round take no notice of each other's values
            written[dst, chunk] = max(written[dst, chunk], done)
            read[src, chunk] = max(read[src, chunk], done)
    return end


@functools.lru_cache(maxsize=1024)
def busiest(schedule: Schedule, topology: Topology) -> float:
    """What the busiest port of every round carries, summed over the rounds, in chunks over a fast link.

    So long all takes if every round ends before the next one begins and no port waits for another; a shared NIC may
    serve the transfers of a round in any order, not only in that of the schedule as in `volume`.
    """
    table, hosts = schedule.table(), np.array(topology.hosts)
    within = hosts[table[:, 1]] == hosts[table[:, 2]]
    rounds, ranks = schedule.num_rounds, len(hosts)
    most = np.zeros(rounds)
    for column in (1, 2):
        nic = hosts if topology.nic == "host" else np.arange(ranks)
        for used, place, cost in ((within, np.arange(ranks), 1.0), (~within, nic, topology.slow)):
            port = table[used, 0].astype(np.int64) * ranks + place[table[used, column]]
            chunks = np.bincount(port, minlength=rounds * ranks).reshape(rounds, ranks)
            most = np.maximum(most, chunks.max(axis=1) * cost)
    return float(most.sum())
