"""The ports and shared links that a chunk takes from one rank to another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Self

Port = tuple[str, int]


class PortUse(NamedTuple):
    """A port that a move occupies for `seconds`, at any time between the move's start and its arrival.

    If a move takes a fast and a slow link, the fast one can carry other moves for the rest of the time.
    """

    port: Port
    seconds: float


class HostLinks(NamedTuple):
    """The links of a hierarchical schedule, made by `of`. The unit of time is a chunk's transfer within a host.

    `hosts` is the host of every rank, `racks` the rack of every host, and `per_rank` says whether each rank has its own
    NIC or all ranks of a host share one. A chunk between hosts takes `slow · nics[rank]` at the NIC of each of its two
    ranks and, if it leaves a rack, `slow · uplinks[rack]` at the uplinks.
    """

    hosts: tuple[int, ...]
    racks: tuple[int, ...]
    per_rank: bool
    slow: float
    nics: tuple[float, ...]
    uplinks: tuple[float, ...]

    @classmethod
    def of(
        cls,
        hosts: Iterable[int],
        nic: Literal["rank", "host"],
        slow: float,
        racks: Iterable[int] = (),
        nics: Iterable[float] = (),
        uplinks: Iterable[float] = (),
    ) -> Self:
        """Returns the links of a network in which links may have different rates.

        Args:
          hosts: the host of every rank. Hosts are numbered in the order in which they appear.
          nic: "rank" if each rank has a NIC of its own, "host" if all ranks of a host share one.
          slow: the time of a chunk between hosts, divided by its time within a host.
          racks: the rack of every host; () means that all hosts are in one rack.
          nics: by rank, a factor on `slow` for the NIC that the rank uses; () means that all NICs are equal.
          uplinks: by rack, a factor on `slow` for the rack's uplink; () means that all uplinks are equal.

        Raises:
          ValueError: no rank, or a number of racks, NICs or uplinks that does not fit.
        """
        hosts, racks = tuple(hosts), tuple(racks)
        if not hosts:
            raise ValueError("hosts is empty; every rank needs a host")
        count = max(hosts) + 1
        if len(racks) not in (0, count):
            raise ValueError(f"racks has {len(racks)} entries; there are {count} hosts")
        nics, uplinks = tuple(map(float, nics)), tuple(map(float, uplinks))
        for name, given, needed in (("nics", nics, len(hosts)), ("uplinks", uplinks, max(racks, default=-1) + 1)):
            if len(given) not in (0, needed) or not all(each > 0 for each in given):
                raise ValueError(f"{name} is {list(given)}; it must be empty or {needed} positive numbers")
        racks = racks or (0,) * count
        return cls(
            hosts=hosts,
            racks=racks,
            per_rank=nic == "rank",
            slow=float(slow),
            nics=nics if len({*nics}) > 1 else (1.0,) * len(hosts),
            uplinks=uplinks or (1.0,) * (max(racks) + 1),
        )

    @property
    def is_unlike(self) -> bool:
        """Whether some NICs, or some uplinks, are slower than others."""
        return len({*self.nics}) > 1 or len({*self.uplinks}) > 1

    def between(self, src: int, dst: int) -> tuple[PortUse, ...]:
        """The links that a chunk takes from `src` to `dst`."""
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
    """Seconds from a chunk's start to its arrival: the time of the slowest link that it takes."""
    return max(use.seconds for use in ports)
