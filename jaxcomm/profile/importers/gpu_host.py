"""The profile of a host of GPUs and NICs, with one rank per GPU: its links within the host and to other hosts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import numpy as np

from jaxcomm.errors import ProfileError
from jaxcomm.profile.cluster import Topology
from jaxcomm.profile.fit import ASSUMED_ALPHA_S, ASSUMED_BETA_S
from jaxcomm.profile.schema import MAX_RANKS, Link, Profile, Provenance

ASSUMED_SLOW: Final = 4.0  # assumed time of a byte on the slower of two links, divided by its time on the faster link


def joined(gpus: int, links: Iterable[tuple[float, int, int]]) -> tuple[list[int], float]:
    """The groups of GPUs that links join, and the rate of the slowest link that is needed to join them.

    Args:
      gpus: the number of GPUs.
      links: the rate of each link, and its two ends; the end -1 is a switch.

    Returns:
      The group of each GPU, and the rate. Groups are numbered as they appear. Without links there is one group, and the
      rate is 0.0.
    """
    home = list(range(gpus + 1))  # the last entry, of index -1, is the switch
    slowest = 0.0

    def root(end: int) -> int:
        while home[end] != end:
            home[end] = home[home[end]]
            end = home[end]
        return end

    for rate, one, other in sorted(links, reverse=True):
        one, other = root(one), root(other)
        if one != other:
            home[one], slowest = other, rate
    if not slowest:
        return [0] * gpus, 0.0
    number: dict[int, int] = {}
    return [number.setdefault(root(gpu), len(number)) for gpu in range(gpus)], slowest


def profile_of_host(
    groups: Sequence[int],
    nics: int,
    inside: float | None,
    between: float | None,
    nic_rates: Sequence[float],
    provenance: Provenance,
) -> Profile:
    """The profile of one host's GPUs.

    If the GPUs form one group and there are at least as many NICs as GPUs, every GPU gets a NIC with an equal part of
    the total rate. Otherwise one NIC stands for all NICs. Several groups of GPUs count as the hosts of one rack: the
    GPUs of a group share the group's link to other groups, and all groups share the NICs.

    Args:
      groups: the group of each GPU, as `joined` returns it.
      nics: the number of NICs that serve the host.
      inside: bytes per second from one GPU of a group to another; None if unknown.
      between: bytes per second from one group to another; None if unknown.
      nic_rates: bytes per second of each NIC; () if unknown.
      provenance: the provenance of the file.

    Raises:
      ProfileError: the host has fewer than two GPUs, or more GPUs than a profile may have ranks.
    """
    where, gpus = provenance.source, len(groups)
    if not 2 <= gpus <= MAX_RANKS:
        raise ProfileError(
            f"{where}: has {gpus} GPUs; a host of 2 to {MAX_RANKS} can be described.\n"
            "  Cure: give the output of a host that runs several ranks; hosts of one rank need no description."
        )
    several = max(groups) > 0
    nic: Literal["rank", "host"] = "rank" if nics >= gpus and not several else "host"
    source = f"{where}: {gpus} GPUs"
    source += f", {nics} NICs, taken as one per {nic if not several else 'rack'}" if nics else ", no NIC named"
    slow = _ratio(inside, between)
    if several:
        source += f"; they are {max(groups) + 1} groups, each joined by links of its own, that count as hosts of a rack"
        source += f", and a byte between them takes {slow:g} times as long{'' if inside and between else ' (assumed)'}"
    near = between if several else inside and inside * (gpus if nic == "rank" else 1)
    outside = _ratio(near, sum(nic_rates), 1.0 if several else ASSUMED_SLOW)
    if near and nic_rates:
        source += f"; NICs of {sum(nic_rates) / 1e9:.3g} GB/s together"
    else:
        source += f"; a byte to another machine assumed to take {outside:g} times as long as one to the next "
        source += "group" if several else "GPU"
    beta = 1 / inside if inside else ASSUMED_BETA_S
    how = f"{1e-9 / beta:.3g} GB/s {'by its links' if inside else 'assumed'}"
    link = Link(
        alpha_s=ASSUMED_ALPHA_S,
        beta_s_per_byte=beta,
        alpha_assumed=True,
        source=f"{source}; nothing timed: β from {how}, α assumed {ASSUMED_ALPHA_S * 1e6:g} µs"[:4096],
    )
    if several:
        racks = (0,) * (max(groups) + 1)
        topology = Topology(hosts=tuple(groups), nic="host", slow=slow, racks=racks, uplinks=(outside,))
    else:
        topology = Topology(hosts=tuple(groups), nic=nic, slow=outside)
    return Profile(ranks=gpus, link=link, topology=topology, provenance=provenance)


def _ratio(fast: float | None, slow: float | None, assumed: float = ASSUMED_SLOW) -> float:
    """The time of a byte over the slow link divided by its time over the fast link, at least 1.

    Returns `assumed` if a rate is unknown.
    """
    return float(np.clip(float(f"{fast / slow:.3g}"), 1.0, 1e6)) if fast and slow else assumed
