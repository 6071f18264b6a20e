"""The ports and shared links that a chunk takes on its way from one rank to another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Port = tuple[str, int]


class PortUse(NamedTuple):
    """A port that a move takes for `seconds`, at any time from its start until it has arrived.

    Of a fast and a slow link, the fast one carries other moves meanwhile.
    """

    port: Port
    seconds: float


class Links(NamedTuple):
    """The links of a hierarchical schedule, in times of a chunk within a host.

    `hosts` is the host of every rank, `racks` the rack of every host, and `per_rank` says whether a NIC is the rank's
    or all the host's. A chunk between hosts takes `slow`, times `nics[rank]` at the NIC that a rank uses and times
    `uplinks[rack]` at the uplink of its rack, if it leaves that.
    """

    hosts: tuple[int, ...]
    racks: tuple[int, ...]
    per_rank: bool
    slow: float
    nics: tuple[float, ...]
    uplinks: tuple[float, ...]

    def between(self, src: int, dst: int) -> tuple[PortUse, ...]:
        """The links that a chunk takes."""
        home, away = self.hosts[src], self.hosts[dst]
        if home == away:
            return PortUse(("send", src), 1.0), PortUse(("receive", dst), 1.0)
        out, into = self.slow * self.nics[src], self.slow * self.nics[dst]
        shared: tuple[PortUse, ...] = ()
        if not self.per_rank:
            shared = PortUse(("host out", home), out), PortUse(("host in", away), into)
        if self.racks[home] != self.racks[away]:
            ends = (("uplink out", self.racks[home]), ("uplink in", self.racks[away]))
            uplinks = tuple(PortUse(end, self.slow * self.uplinks[end[1]]) for end in ends)
            shared += uplinks
        return *shared, PortUse(("NIC out", src), out), PortUse(("NIC in", dst), into)


def arrival(ports: Sequence[PortUse]) -> float:
    """Seconds until a chunk has arrived: as long as its slowest link takes."""
    return max(use.seconds for use in ports)
