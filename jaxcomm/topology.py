"""Where the ranks are: hosts, NICs, slow links; and how long a schedule occupies such a network.

May be imported by everybody but schedules; imports those and values.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from operator import itemgetter
from typing import Annotated, Final, Literal, NamedTuple, Self

import numpy as np
import pydantic
from pydantic import Field

from jaxcomm.schedules import Op, Schedule
from jaxcomm.values import Value

SOLVED: Final = 16  # ranks up to which a schedule is solved for its network, and every transfer timed on its own

PortKind = Literal["send", "receive", "card out", "card in"]
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
        return Port("card out", self.hosts[src] if shared else src), Port("card in", self.hosts[dst] if shared else dst)

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
        card = hosts if topology.nic == "host" else np.arange(ranks)
        for used, place, cost in ((within, np.arange(ranks), 1.0), (~within, card, topology.slow)):
            port = table[used, 0].astype(np.int64) * ranks + place[table[used, column]]
            chunks = np.bincount(port, minlength=rounds * ranks).reshape(rounds, ranks)
            most = np.maximum(most, chunks.max(axis=1) * cost)
    return float(most.sum())
