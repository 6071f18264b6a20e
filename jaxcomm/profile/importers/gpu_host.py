"""A host of GPUs and NICs as a profile of its ranks, one per GPU, that says how they reach other hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np

from jaxcomm.cluster import Topology
from jaxcomm.errors import ProfileError
from jaxcomm.profile.fit import ASSUMED_ALPHA_S, ASSUMED_BETA_S
from jaxcomm.profile.schema import MAX_RANKS, Link, Profile, Provenance

ASSUMED_SLOW: Final = 4.0  # time of a byte between hosts, relative to within one, where nothing tells it


def profile_of_host(
    gpus: int, nics: int, inside: float | None, nic_rates: Sequence[float], provenance: Provenance
) -> Profile:
    """The profile of one host's GPUs.

    They have a NIC each if there are as many as GPUs, and share the bytes per second of all; else one NIC stands for
    all.

    Args:
      gpus: of the host.
      nics: how many serve them.
      inside: bytes per second from one GPU to another; None if unknown.
      nic_rates: bytes per second of each NIC; () if unknown.
      provenance: of the file.

    Raises:
      ProfileError: the host has less than two GPUs, or more than a profile may have ranks.
    """
    where = provenance.source
    if not 2 <= gpus <= MAX_RANKS:
        raise ProfileError(
            f"{where}: has {gpus} GPUs; a host of 2 to {MAX_RANKS} can be described.\n"
            "  Cure: give the output of a host that runs several ranks; hosts of one rank need no description."
        )
    nic: Literal["rank", "host"] = "rank" if nics >= gpus else "host"
    source = f"{where}: {gpus} GPUs"
    source += f", {nics} NICs, taken as one per {nic}" if nics else ", no NIC named: one for all assumed"
    slow = ASSUMED_SLOW
    if inside and nic_rates:
        slow = inside * (gpus if nic == "rank" else 1) / sum(nic_rates)
        slow = float(np.clip(float(f"{slow:.3g}"), 1.0, 1e6))
        source += f" of {sum(nic_rates) / 1e9:.3g} GB/s together"
    else:
        source += f"; a byte between hosts assumed to take {slow:g} times as long"
    beta = 1 / inside if inside else ASSUMED_BETA_S
    how = f"{1e-9 / beta:.3g} GB/s {'by its links' if inside else 'assumed'}"
    link = Link(
        alpha_s=ASSUMED_ALPHA_S,
        beta_s_per_byte=beta,
        alpha_assumed=True,
        source=f"{source}; nothing timed: β from {how}, α assumed {ASSUMED_ALPHA_S * 1e6:g} µs"[:4096],
    )
    topology = Topology(hosts=(0,) * gpus, nic=nic, slow=slow)
    return Profile(ranks=gpus, link=link, topology=topology, provenance=provenance)
