"""The cluster that profile, planner, plan and simulator share: hosts, racks, uplinks, NICs.

May be imported by everybody but schedules; imports values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import Field

from jaxcomm.files import Value

SOLVED: Final = 16  # ranks up to which a schedule is solved for its network

STAGES: Final = 4  # shared links on the way of a message: its host's NIC, its rack's uplink, and the same at the end

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Topology(Value):
    """Hosts of ranks, with fast links inside and slow ones between.

    A rank sends one chunk and receives one at a time within its host and, independently of that, through a network
    NIC, which is its own (`nic` "rank") or shared by the ranks of its host ("host"); a NIC works in both directions
    at once. `hosts[r]` is the host of rank r; a byte between hosts takes `slow` times as long as one within. Hosts may
    be in racks: `racks[g]` is the rack of host g, () if all are in one, and a byte through the uplink of rack i, which
    its hosts share in each direction, takes `uplinks[i]` times as long as one between two hosts. A byte through the NIC
    that rank r uses takes `nics[r]` times as long; () if all are alike.
    """

    hosts: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=65536, strict=True)], ...], Field(fail_fast=True, min_length=2)
    ]
    nic: Literal["rank", "host"]
    slow: Annotated[float, Field(ge=1, le=1e6, strict=True, allow_inf_nan=False)]
    racks: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=65536, strict=True)], ...], Field(fail_fast=True, max_length=65536)
    ] = ()
    uplinks: Annotated[
        tuple[Annotated[float, Field(ge=1, le=1e6, strict=True, allow_inf_nan=False)], ...],
        Field(fail_fast=True, max_length=65536),
    ] = ()
    nics: Annotated[
        tuple[Annotated[float, Field(ge=1, le=1e6, strict=True, allow_inf_nan=False)], ...],
        Field(fail_fast=True, max_length=65536),
    ] = ()

    @property
    def has_tiers(self) -> bool:
        """Whether there are several hosts, some of several ranks or all in racks."""
        hosts = len({*self.hosts})
        return hosts > 1 and (hosts < len(self.hosts) or bool(self.racks))

    @property
    def is_unlike(self) -> bool:
        """Whether some NICs, or some uplinks, are slower than others."""
        return len({*self.nics}) > 1 or len({*self.uplinks}) > 1

    @property
    def host_slowness(self) -> tuple[float, ...]:
        """By host, how many times as long a byte takes through all its NICs as on a link within a host."""
        nics = self.nics or (1.0,) * len(self.hosts)
        found = []
        for host in range(max(self.hosts) + 1):
            own = [nic for at, nic in zip(self.hosts, nics, strict=True) if at == host]
            found.append(self.slow * (1 / sum(1 / nic for nic in own) if self.nic == "rank" else max(own)))
        return tuple(found)

    @pydantic.model_serializer(mode="wrap")
    def _without_like_nics(self, make: Callable[[Topology], dict[str, Any]]) -> dict[str, Any]:
        document = make(self)
        if not self.nics:
            document.pop("nics", None)
        return document

    @pydantic.model_validator(mode="after")
    def _hosts_are_numbered_as_they_appear(self) -> Self:
        known = 0
        for rank, host in enumerate(self.hosts):
            if host > known:
                raise ValueError(
                    f"topology.hosts[{rank}] is {host}; hosts are numbered as they appear, so it is at most {known}"
                )
            known = max(known, host + 1)
        if len(self.racks) not in (0, known) or len(self.uplinks) != max(self.racks, default=-1) + 1:
            raise ValueError(
                f"topology.racks has {len(self.racks)} entries and topology.uplinks {len(self.uplinks)}; {known} hosts "
                "need one rack each, and these one uplink each"
            )
        if len(self.nics) not in (0, len(self.hosts)):
            raise ValueError(f"topology.nics has {len(self.nics)} entries for {len(self.hosts)} ranks; each needs one")
        if self.nic == "host" and self.nics:
            of_host = dict(zip(self.hosts, self.nics, strict=True))
            for rank, host in enumerate(self.hosts):
                if self.nics[rank] != of_host[host]:
                    raise ValueError(
                        f"topology.nics[{rank}] is {self.nics[rank]:g}, but another rank of host {host}, which shares "
                        f"its NIC, has {of_host[host]:g}"
                    )
        return self


@dataclass(frozen=True)
class Cluster:
    """Links of α seconds and β seconds per byte, and what differs between them; by default all are alike.

    A rank has a port in each direction; with a `topology` also one for other hosts. A link that ranks share,
    the NIC of a host or the uplink of a rack (each in both directions), serves one message after the other.

    Attributes:
      alpha: seconds per message.
      beta: seconds per byte; with a topology, on a link within a host.
      topology: hosts, and what a byte between them takes.
      racks: the rack of every rank; () means that all are in one.
      uplinks: by rack, how many times as long a byte takes through its uplink as between two hosts of the rack.
      nics: by rank, how many times as long a byte takes through its NIC; () means that none is slower.
      incast: the factor by which a byte between hosts takes longer where one exchanges with several others.
    """

    alpha: float
    beta: float
    topology: Topology | None = None
    racks: tuple[int, ...] = ()
    uplinks: tuple[float, ...] = ()
    nics: tuple[float, ...] = ()
    incast: float = 1.0

    @property
    def _nics(self) -> tuple[float, ...]:
        return self.nics or (self.topology.nics if self.topology else ())

    def remote(self, src: Ints, dst: Ints) -> NDArray[np.bool_]:
        """Marks messages that leave their host through a NIC that is not the port of messages within it."""
        if self.topology is None:
            return np.zeros(len(src), bool)
        host = np.array(self.topology.hosts)
        crossing: NDArray[np.bool_] = host[src] != host[dst]
        return crossing

    def port_betas(self, src: Ints, dst: Ints) -> tuple[Floats, Floats]:
        """Seconds per byte of every message at its sender's port, and at its receiver's.

        A message arrives as fast as the slower one lets it; meanwhile the faster one carries other messages, too.
        """
        beta = np.full(len(src), self.beta)
        remote = self.remote(src, dst)
        if self.topology:
            beta[remote] *= self.topology.slow
        through = remote if self.topology else np.ones(len(src), bool)
        nic = np.array(self._nics or [1.0] * (1 + int(max(src.max(initial=0), dst.max(initial=0)))))
        return beta * np.where(through, nic[src], 1.0), beta * np.where(through, nic[dst], 1.0)

    def port_beta(self, src: Ints, dst: Ints) -> Floats:
        """Seconds per byte of every message at the slower of its two ports."""
        found: Floats = np.maximum(*self.port_betas(src, dst))
        return found

    def shared(self, src: Ints, dst: Ints) -> tuple[Ints, Floats]:
        """By message, as [STAGES, messages], the shared links on its way and their seconds per byte; else -1 and 0."""
        link = np.full((STAGES, len(src)), -1)
        beta = np.zeros((STAGES, len(src)))
        between = self.beta
        if self.topology:
            between *= self.topology.slow
            if self.topology.nic == "host":
                remote, host = self.remote(src, dst), np.array(self.topology.hosts)
                several = np.bincount(host)[host] > 1  # else the NIC is the rank's port, and no other's
                nic = np.array(self._nics or [1.0] * len(host))
                for stage, end in ((0, src), (3, dst)):
                    link[stage] = np.where(remote & several[end], host[end], -1)
                    beta[stage] = between * nic[end]
        racks, uplinks = self.racks, self.uplinks
        if self.topology and self.topology.racks and not racks:
            racks, uplinks = tuple(self.topology.racks[host] for host in self.topology.hosts), self.topology.uplinks
        if racks:
            rack, uplink = np.array(racks), np.array(uplinks)
            crosses = rack[src] != rack[dst]
            for stage, end in ((1, src), (2, dst)):
                link[stage] = np.where(crosses, rack[end], -1)
                beta[stage] = between * uplink[rack[end]]
        # Every stage has links of its own, numbered one after the other.
        first = np.cumsum([0, *(link.max(axis=1, initial=-1) + 1)])[:STAGES, None]
        return np.where(link < 0, -1, link + first), np.where(link < 0, 0.0, beta)
