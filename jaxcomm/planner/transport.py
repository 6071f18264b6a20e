"""The decision between TCP and UDP between hosts."""

from __future__ import annotations

from typing import Final

from jaxcomm.plan.transport import Transport
from jaxcomm.profile import Profile

UDP_FROM: Final = 3e-3  # of packets: from there on UDP was behind TCP only for 1 MiB in packets of 9 000 bytes


def decide(profile: Profile) -> Transport | None:
    """UDP where the worst way loses enough packets that TCP slows down for them.

    None: nobody knows what gets lost; or all ranks are on one host; or several rails connect the hosts: lost packets
    are counted for one only, and all rails go over one of the two.
    """
    if profile.packet_loss is None or len({*profile.hosts}) == 1 or len(profile.rails) > 1:
        return None
    rate = profile.packet_loss.rate
    return Transport(protocol="udp" if rate >= UDP_FROM else "tcp", loss_rate=rate, udp_from=UDP_FROM)


def with_resends(profile: Profile, chosen: Transport | None) -> Profile:
    """The profile with a loss whose repair takes what the chosen transport waits for: over UDP a round trip."""
    if profile.packet_loss is None or chosen is None or chosen.protocol == "tcp":
        return profile
    round_trip = profile.packet_loss.model_copy(update={"timeout_s": 2 * profile.link.alpha_s})
    return profile.model_copy(update={"packet_loss": round_trip})
