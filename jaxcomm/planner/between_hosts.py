"""The decision between TCP and UDP between hosts."""

from __future__ import annotations

from typing import Final

from jaxcomm.plan.between_hosts import BetweenHosts
from jaxcomm.profile import Profile

UDP_FROM: Final = 3e-3  # of packets: from there on UDP was behind TCP on no line tried (benchmarks/README.md)


def decide(profile: Profile) -> BetweenHosts | None:
    """UDP where the worst link loses enough packets that TCP slows down for them.

    None: nobody knows what links lose; or all ranks are on one host; or several rails connect the hosts, and UDP uses
    one.
    """
    if profile.loss is None or len({*profile.hosts}) == 1 or len(profile.rails) > 1:
        return None
    rate = profile.loss.rate
    return BetweenHosts(transport="udp" if rate >= UDP_FROM else "tcp", loss_rate=rate, udp_from=UDP_FROM)
