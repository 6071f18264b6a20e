"""Finds the speeds of the links between ranks in known racks, for groups of which only one uses an uplink at a time.

All functions of this module are pure functions of the measured times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxcomm.measure.placement import Floats, PairTimes, describe, fit_rows, mean_per_byte, ratio
from jaxcomm.profile.find_racks import LEAST_GAP

Racks = Sequence[Sequence[int]]


class RackLinks(NamedTuple):
    """The speeds of links within and between racks. A ratio below 1.25 to the time of a typical link counts as 1.

    Attributes:
      racks: the ranks of each rack.
      uplinks: for each rack, the time of a byte to the other rack that it reaches fastest, divided by the time of a
        byte within a rack. No other transfer runs meanwhile. With two racks, both have the same value, which is that of
        the slower uplink.
      nics: for each rank, the time of a byte through its NIC, divided by the median of all ranks' times.
      alpha_s: latency in seconds of a transfer within a rack.
      beta_s_per_byte: seconds per byte within a rack.
    """

    racks: tuple[tuple[int, ...], ...]
    uplinks: tuple[float, ...]
    nics: tuple[float, ...]
    alpha_s: float
    beta_s_per_byte: float


def rack_links(found: PairTimes, racks: Racks) -> RackLinks | None:
    """Returns the measured links between ranks in these racks.

    The times may suggest other racks. If a byte within the given racks takes more than 1.25 times as long as within the
    suggested racks, the suggested racks replace the given racks.

    Args:
      found: the measured times.
      racks: the ranks of each rack; every rank is in one rack.

    Returns:
      The links; None if all ranks are on one host, so that no network was measured.
    """
    if len({*found.hosts}) < 2:
        return None
    ranks = range(len(found.hosts))
    alone, loaded = (mean_per_byte(found.sizes, rounds, ranks) for rounds in (found.alone, found.loaded))
    near, far = _near_and_far(found.hosts, racks)
    if described := [rack["ranks"] for rack in describe(found).get("racks", [])]:
        in_described, between_described = _near_and_far(found.hosts, described)
        if _mean(alone[near]) > LEAST_GAP * _mean(alone[in_described]):
            racks, near, far = described, in_described, between_described
    if not near.any():  # each rack has a single rank
        near = far
    fastest = _fastest(loaded, near)
    nics = [_clear(each / float(np.median(fastest))) for each in fastest]
    quick = np.array(nics) == 1
    both_quick = quick[:, None] & quick
    met_near = (near & np.isfinite(alone)).any(axis=1)  # with many ranks, only some pairs are measured alone
    typical = float(np.median(_fastest(alone, near)[met_near if met_near.any() else slice(None)]))
    uplinks = []
    for rack in racks:
        times = []
        for other in racks:
            if other is not rack:
                ways = np.ix_(rack, other)
                of_quick = _median(alone[ways][both_quick[ways]])  # a slow NIC does not make an uplink slow
                times.append(_median(alone[ways]) if np.isnan(of_quick) else of_quick)
        known = [time for time in times if np.isfinite(time)]
        uplinks.append(_clear(min(known) / typical) if known else 1.0)
    usable = near & both_quick
    rows = [
        row
        for pairs, seconds in found.loaded
        for pair, row in zip(pairs, seconds, strict=True)
        if (usable if usable.any() else near)[pair]
    ]
    link = fit_rows(found.sizes, rows, "exchanges of all ranks at once, of two in a rack")
    return RackLinks(
        tuple(tuple(rack) for rack in racks), tuple(uplinks), tuple(nics), link.alpha_s, link.beta_s_per_byte
    )


def _near_and_far(hosts: Sequence[str], racks: Racks) -> tuple[np.ndarray, np.ndarray]:
    """Masks of pairs of ranks: pairs in one rack, and pairs in two racks.

    If a rack has several hosts, its pairs on the same host are in neither mask, because they bypass the NICs.
    """
    home = np.empty(len(hosts), int)
    inside = np.empty(len(hosts), bool)
    for index, rack in enumerate(racks):
        home[list(rack)] = index
        inside[list(rack)] = len({hosts[rank] for rank in rack}) == 1
    same_rack = home[:, None] == home
    same_host = np.array(hosts)[:, None] == np.array(hosts)
    return same_rack & (~same_host | inside) & ~np.eye(len(hosts), dtype=bool), ~same_rack


def _fastest(seconds: Floats, near: np.ndarray) -> Floats:
    """Each rank's least time with a rank in its rack, or with any rank if it was measured with no rank in its rack."""
    least = np.where(near & np.isfinite(seconds), seconds, np.inf).min(axis=1)
    with_any = np.where(np.isfinite(seconds), seconds, np.inf).min(axis=1)
    found: Floats = np.where(np.isfinite(least), least, with_any)
    return np.where(np.isfinite(found), found, np.median(found[np.isfinite(found)]))


def _mean(seconds: Floats) -> float:
    """The mean of finite values; NaN if there are none."""
    known = seconds[np.isfinite(seconds)]
    return float(known.mean()) if known.size else float("nan")


def _median(seconds: Floats) -> float:
    """The median of finite values; NaN if there are none."""
    known = seconds[np.isfinite(seconds)]
    return float(np.median(known)) if known.size else float("nan")


def _clear(value: float) -> float:
    return ratio(value) if value >= LEAST_GAP else 1.0
