"""A cluster's hosts, racks, uplinks and NICs, in one description for the profile, planner, plan and simulator.

All packages except `schedules` may import this module. It imports `files`.
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

SOLVED: Final = 16  # largest number of ranks for which a solver computes schedules for a network

STAGES: Final = 4  # number of links on a path that ranks may share: sender's NIC and uplink, receiver's uplink and NIC

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Topology(Value):
    """The hosts of the ranks, with fast links within a host and slow links between hosts.

    At any time a rank sends one chunk and receives one chunk within its host. Independently, it sends one chunk and
    receives one chunk through a NIC. Either each rank has a NIC of its own (`nic` "rank"), or the ranks of a host share
    one NIC ("host"). A NIC works in both directions at once. `hosts[r]` is the host of rank r. `slow` is the time of a
    byte between hosts divided by the time of a byte within a host. Hosts may be in racks: `racks[g]` is the rack of
    host g; `racks` is () if all hosts are in one rack. The hosts of rack i share its uplink in each direction, and
    `uplinks[i]` is the time of a byte through this uplink divided by the time of a byte between two hosts. `nics[r]` is
    the factor by which a byte takes longer through the NIC that rank r uses; `nics` is () if all NICs have the same
    rate.
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
        """Whether there are several hosts, and either a host has several ranks or the hosts are in racks."""
        hosts = len({*self.hosts})
        return hosts > 1 and (hosts < len(self.hosts) or bool(self.racks))

    @property
    def is_unlike(self) -> bool:
        """Whether some NICs, or some uplinks, are slower than others."""
        return len({*self.nics}) > 1 or len({*self.uplinks}) > 1

    @property
    def host_slowness(self) -> tuple[float, ...]:
        """For each host, seconds per byte through all its NICs together, divided by seconds per byte within a host."""
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
    """The α and β of a cluster's links, and the factors by which some are slower. By default all links are equal.

    A rank has one port in each direction. With a `topology` it has a second port for messages to other hosts. A link
    that ranks share, such as the NIC of a host or the uplink of a rack, serves one message after the other in each
    direction.

    Attributes:
      alpha: seconds per message.
      beta: seconds per byte; with a topology, seconds per byte within a host.
      topology: the hosts, and the cost of a byte between them.
      racks: the rack of every rank; () means that all ranks are in one rack.
      uplinks: for each rack, the factor by which a byte takes longer through the uplink than between the rack's hosts.
      nics: for each rank, the factor by which a byte takes longer through its NIC; () means that no NIC is slower.
      incast: the factor by which a byte between hosts takes longer if a host exchanges with several other hosts.
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
        """Marks the messages to other hosts. Such messages use a NIC instead of the port within the host."""
        if self.topology is None:
            return np.zeros(len(src), bool)
        host = np.array(self.topology.hosts)
        crossing: NDArray[np.bool_] = host[src] != host[dst]
        return crossing

    def port_betas(self, src: Ints, dst: Ints) -> tuple[Floats, Floats]:
        """Seconds per byte of every message at its sender's port, and at its receiver's port.

        The slower port determines when a message arrives. The faster port carries other messages meanwhile.
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
        """Two arrays [STAGES, messages]: the shared link at each stage of a message's path, and its seconds per byte.

        Where the path has no shared link at a stage, the arrays hold -1 and 0.
        """
        link = np.full((STAGES, len(src)), -1)
        beta = np.zeros((STAGES, len(src)))
        between = self.beta
        if self.topology:
            between *= self.topology.slow
            if self.topology.nic == "host":
                remote, host = self.remote(src, dst), np.array(self.topology.hosts)
                several = np.bincount(host)[host] > 1  # the NIC of a host with one rank is that rank's port
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
        # Every stage has its own links. The links' numbers continue from stage to stage.
        first = np.cumsum([0, *(link.max(axis=1, initial=-1) + 1)])[:STAGES, None]
        return np.where(link < 0, -1, link + first), np.where(link < 0, 0.0, beta)
