"""Finds the hosts of each rack, and slow NICs, from the time of a byte between every two hosts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

LEAST_GAP: Final = 1.25  # minimum ratio of times between racks to times within racks; smaller ratios are noise

Floats = NDArray[np.float64]


class Racks(NamedTuple):
    """The network between hosts, as far as it is known.

    Attributes:
      racks: the hosts of each rack; a single rack if nothing suggests several.
      nics: for each host, the time of a byte through its NIC divided by the time through the other hosts' NICs.
    """

    racks: tuple[tuple[int, ...], ...]
    nics: tuple[float, ...]


def find_racks(seconds: Floats) -> Racks:
    """Groups hosts into racks by average linkage.

    Each join unites the two groups of hosts with the least mean time between them. A join is a gap if its mean time
    exceeds the mean times of all joins before it by a quarter or more. The groups just before the greatest gap are the
    racks. A host that is alone in its rack, while other racks have several hosts, is moved to the nearest rack and gets
    a slow NIC.

    Args:
      seconds: symmetric matrix of the seconds of a byte between two hosts while all hosts are busy; NaN where unknown.
    """
    hosts = len(seconds)
    known = np.isfinite(seconds) & ~np.eye(hosts, dtype=bool)
    total, count = np.where(known, seconds, 0.0), known.astype(float)
    groups: dict[int, tuple[int, ...]] = {host: (host,) for host in range(hosts)}
    racks, gap, slowest = [tuple(range(hosts))], LEAST_GAP, np.inf
    while len(groups) > 1:
        left = np.array([*groups])
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = (total / count)[np.ix_(left, left)]
        mean[~np.isfinite(mean) | np.eye(len(left), dtype=bool)] = np.inf
        one, other = (int(left[i]) for i in np.unravel_index(mean.argmin(), mean.shape))
        height = float(mean.min())
        if np.isinf(height):
            break
        if height >= gap * slowest:
            racks, gap = [*groups.values()], height / slowest
        slowest = max(height, slowest) if np.isfinite(slowest) else height
        groups[one] = tuple(sorted(groups[one] + groups.pop(other)))
        for table in (total, count):
            table[one] += table[other]
            table[:, one] += table[:, other]
            table[one, one] = 0.0
    return _without_lone_hosts(seconds, racks)


def _without_lone_hosts(seconds: Floats, groups: Sequence[tuple[int, ...]]) -> Racks:
    racks = [[*group] for group in groups if len(group) > 1]
    nics = [1.0] * len(seconds)
    if not racks:
        return Racks(tuple(groups), tuple(nics))
    within = np.nanmean([seconds[pair] for rack in racks for pair in combinations(rack, 2)])
    for group in groups:
        if len(group) > 1:
            continue
        [host] = group
        means = [float(np.nanmean(seconds[host, rack])) for rack in racks]
        nics[host] = max(1.0, min(means) / float(within))
        racks[int(np.argmin(means))].append(host)
    return Racks(tuple(sorted(tuple(sorted(rack)) for rack in racks)), tuple(nics))
