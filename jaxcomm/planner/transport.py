"""Chooses TCP or UDP between hosts."""

from __future__ import annotations

from typing import Final

from jaxcomm.plan.transport import Transport
from jaxcomm.profile import Profile

# Minimum share of lost packets at which UDP is chosen. In measurements with at least this loss, TCP was faster than UDP
# only for 1 MiB in packets of 9 000 bytes.
UDP_FROM: Final = 3e-3


def decide(profile: Profile) -> Transport | None:
    """UDP if the worst path loses so many packets that TCP slows down, otherwise TCP.

    Returns None if the loss is unknown, if all ranks are on one host, or if several rails connect the hosts: loss is
    measured on one rail, but all rails must use the same protocol.
    """
    if profile.packet_loss is None or len({*profile.hosts}) == 1 or len(profile.rails) > 1:
        return None
    rate = profile.packet_loss.rate
    return Transport(protocol="udp" if rate >= UDP_FROM else "tcp", loss_rate=rate, udp_from=UDP_FROM)


def with_resends(profile: Profile, chosen: Transport | None) -> Profile:
    """The profile with the chosen transport's retransmission timeout, which is one round trip with UDP."""
    if profile.packet_loss is None or chosen is None or chosen.protocol == "tcp":
        return profile
    round_trip = profile.packet_loss.model_copy(update={"timeout_s": 2 * profile.link.alpha_s})
    return profile.model_copy(update={"packet_loss": round_trip})
