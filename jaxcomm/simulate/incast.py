"""Slower links for schedules in which a rank exchanges with several other hosts (incast).

No rank waits for the end of a round, so even messages of different rounds overlap. If several messages reach one NIC
at once, they queue there, and some packets get lost. A ring has no incast: each host has one sender and one receiver.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final, TypeVar

import numpy as np

from jaxcomm.profile.cluster import Cluster, Topology
from jaxcomm.schedules import Schedule

FROM_BYTES: Final = 256 << 10  # minimum size of a rank's part for incast; smaller parts fit into switches' queues

C = TypeVar("C", bound=Cluster)


def met(schedule: Schedule, nbytes: int, links: C) -> C:
    """Returns the links, slowed down by incast if a schedule for `nbytes` has incast.

    If a rank sends to several other hosts, or receives from several, the time of a byte between hosts is multiplied by
    `links.incast`. The result's `incast` is 1.
    """
    if links.incast == 1:
        return links
    is_large = nbytes >= schedule.ranks * FROM_BYTES
    factor = links.incast if is_large and _has_incast(schedule, links.topology) else 1.0
    if links.topology is None:
        return replace(links, beta=links.beta * factor, incast=1.0)
    slower = links.topology.model_copy(update={"slow": links.topology.slow * factor})
    return replace(links, topology=slower, incast=1.0)


def link_of(schedule: Schedule, nbytes: int, links: Cluster) -> tuple[float, float, Topology | None]:
    """Returns α, β and topology after the slowdown by `met`, in the order in which cost functions take them."""
    found = met(schedule, nbytes, links)
    return found.alpha, found.beta, found.topology


@lru_cache(maxsize=4096)
def _has_incast(schedule: Schedule, topology: Topology | None) -> bool:
    hosts = np.arange(schedule.ranks) if topology is None else np.array(topology.hosts)
    src, dst = np.concatenate([phase.table()[:, 1:3] for phase in schedule.phases]).T.astype(np.int64)
    crossing = hosts[src] != hosts[dst]
    sent, received = ((src, hosts[dst]), (dst, hosts[src]))
    return any(
        len(np.unique(np.stack(way)[:, crossing], axis=1).T) > len(np.unique(way[0][crossing]))
        for way in (sent, received)
    )
