"""The network of a run: a cluster, the packets that its links lose, and the share that may stay lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from jaxcomm.profile import PacketLoss, Profile
from jaxcomm.profile.cluster import Cluster


@dataclass(frozen=True)
class Network(Cluster):
    """A cluster whose links may lose packets; by default no packets are lost.

    A shared link serves one message after another, and always picks the waiting message of the earliest round. As under
    fair sharing, the link is never idle while a message waits. But the first message finishes earlier than under fair
    sharing.

    Attributes:
      packet_loss: loss of the links; None means that they lose no packets.
      bound: the share of every message that may stay lost; None means that TCP repairs every loss.
    """

    packet_loss: PacketLoss | None = None
    bound: float | None = None

    @classmethod
    def of(cls, profile: Profile, bound: float | None = None) -> Self:
        """Returns the network that a profile describes, with the attribute `bound`."""
        home = {rank: index for index, rack in enumerate(profile.racks) for rank in rack.ranks}
        return cls(
            profile.link.alpha_s,
            profile.link.beta_s_per_byte,
            profile.topology,
            tuple(home[rank] for rank in range(profile.ranks)) if home else (),
            tuple(rack.uplink for rack in profile.racks),
            tuple(profile.nics),
            profile.incast or 1.0,
            profile.packet_loss,
            bound,
        )
