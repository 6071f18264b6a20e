"""What a run runs on: latency, bandwidth, and what differs between the ranks' links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from jaxcomm.profile import PacketLoss, Profile
from jaxcomm.topology import Topology

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

STAGES: Final = 4  # shared links on the way of a message: its host's NIC, its rack's uplink, and the same at the end


@dataclass(frozen=True)
class Network:
    """Links of α seconds and β seconds per byte; by default all are alike, and nothing is lost.

    A rank has a port in each direction; with a `topology` also one for other hosts. What ranks share, the NIC of a
    host and the uplink of a rack (each in both directions), serves one message after the other, in the order in which
    they reach it: it is never idle while one waits, as under fair sharing, but the first is through earlier.

    Attributes:
      alpha: seconds per message.
      beta: seconds per byte; with a topology, on a link within a host.
      topology: hosts, and what a byte between them takes.
      racks: the rack of every rank; () means that all are in one.
      uplinks: by rack, how many times as long a byte takes through its uplink as between two hosts of the rack.
      nics: by rank, how many times as long a byte takes through its NIC; () means that none is slower.
      loss: lost packets, None if there are none.
      bound: the share of every message that may stay lost; None means that TCP repairs every loss.
    """

    alpha: float
    beta: float
    topology: Topology | None = None
    racks: tuple[int, ...] = ()
    uplinks: tuple[float, ...] = ()
    nics: tuple[float, ...] = ()
    loss: PacketLoss | None = None
    bound: float | None = None

    @classmethod
    def of(cls, profile: Profile, bound: float | None = None) -> Self:
        """The network that a profile describes; `bound` as above."""
        home = {rank: index for index, rack in enumerate(profile.racks) for rank in rack.ranks}
        return cls(
            profile.link.alpha_s,
            profile.link.beta_s_per_byte,
            profile.topology,
            tuple(home[rank] for rank in range(profile.ranks)) if home else (),
            tuple(rack.uplink for rack in profile.racks),
            tuple(profile.nics),
            profile.loss,
            bound,
        )

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
