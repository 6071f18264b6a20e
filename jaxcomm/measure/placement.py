"""Finds racks, slow NICs and slow uplinks from the times of transfers between all pairs of ranks.

All functions of this module are pure functions of the measured times.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.profile import schema
from jaxcomm.profile.find_racks import find_racks
from jaxcomm.profile.fit import fit
from jaxcomm.profile.racks_and_rails import Sample

Floats = NDArray[np.float64]
Pair = tuple[int, int]


class PairRound(NamedTuple):
    """Pairs of ranks that exchanged bytes at once, in both directions. Each rank is in at most one pair.

    Attributes:
      pairs: the pairs, each with its lower rank first.
      seconds: seconds of one exchange, [pairs, sizes].
    """

    pairs: tuple[Pair, ...]
    seconds: Floats


class PairTimes(NamedTuple):
    """The measured times of the pairs' exchanges.

    Attributes:
      sizes: bytes in each direction, ascending; at least two.
      hosts: the name of each rank's host.
      alone: rounds in which a single pair exchanged.
      loaded: rounds in which all ranks exchanged at once.
      incast: the time of a byte if a host exchanges with several hosts, divided by the time of a byte if the host
        exchanges with one host; None: not measured.
    """

    sizes: tuple[int, ...]
    hosts: tuple[str, ...]
    alone: tuple[PairRound, ...]
    loaded: tuple[PairRound, ...]
    incast: float | None = None


def matchings(ranks: Sequence[int]) -> list[list[Pair]]:
    """Rounds in which every rank has one partner. Over all rounds, every two ranks are partners once.

    If the number of ranks is odd, one rank has no partner in each round.
    """
    ring: list[int | None] = [*ranks] if len(ranks) % 2 == 0 else [*ranks, None]
    rounds = []
    for _ in range(len(ring) - 1):
        met = zip(ring[: len(ring) // 2], reversed(ring[len(ring) // 2 :]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in met if a is not None and b is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def shuffled_matchings(ranks: int, times: int, most: int) -> list[list[Pair]]:
    """The matchings for `times` orders of the ranks, at most `most` per order. All processes get the same result."""
    dice, found = random.Random(0), list[list[Pair]]()
    for _ in range(times):
        order = [*range(ranks)]
        if found:
            dice.shuffle(order)
        found += matchings(order)[:most]
    return found


def describe(found: PairTimes) -> dict[str, Any]:
    """Returns a profile's fields on links: `link`, `hosts` and, if known, `topology`, `racks`, `nics` and `incast`.

    `link` describes the link between two ranks on one host if a host has several ranks, otherwise between two hosts in
    one rack. It is fitted to the median times of such pairs while all ranks exchange, as in a collective. A host's
    ranks count as sharing its NIC if n exchanges at once take more than √n times the time of one exchange alone. An
    uplink's rate counts all bytes through the uplink, in the rounds with the most exchanges between its rack and other
    racks. Among these exchanges, only those with the rack that is reached fastest are used.
    """
    names = [*dict.fromkeys(found.hosts)]
    host = [names.index(name) for name in found.hosts]
    several = len(set(host)) < len(host)
    between = mean_per_byte(found.sizes, found.loaded, host)
    racks = find_racks(between)
    home = [next(i for i, rack in enumerate(racks.racks) if each in rack) for each in host]
    inside = host if several else home
    near = [
        row
        for pairs, seconds in found.loaded
        for (a, b), row in zip(pairs, seconds, strict=True)
        if inside[a] == inside[b] and racks.nics[host[a]] == racks.nics[host[b]] == 1
    ]
    where = "ranks of one host" if several else "hosts of one rack" if len(racks.racks) > 1 else "hosts"
    link = fit_rows(found.sizes, near, f"exchanges of all ranks at once, of two {where}")
    fields: dict[str, Any] = {"link": link.model_dump(), "hosts": list(found.hosts)}
    if len(names) < 2:
        return fields
    same_rack = [between[a, b] for rack in racks.racks for a, b in combinations(rack, 2)]
    remote = float(np.nanmean(same_rack if same_rack else between[np.triu_indices(len(names), 1)]))
    if several:
        nic, alone = _nic(found, host)
        slow = (alone if nic == "host" else remote) / max(link.beta_s_per_byte, 1e-15)
        fields["topology"] = {"hosts": host, "nic": nic, "slow": ratio(slow)}
    if len(racks.racks) > 1:
        uplinks = _uplinks(found, home, remote)
        fields["racks"] = [
            {"name": f"rack {i}", "ranks": [rank for rank, each in enumerate(home) if each == i], "uplink": uplink}
            for i, uplink in enumerate(uplinks)
        ]
    if found.incast is not None:
        fields["incast"] = ratio(found.incast)
    if max(racks.nics) > 1:
        fields["nics"] = [ratio(racks.nics[each]) for each in host]
    return fields


class PairRate(NamedTuple):
    """Median seconds of an exchange of the smallest size, and bytes per second: 1 divided by the median `per_byte`."""

    least_s: float
    bytes_per_s: float


def kinds(found: PairTimes, racks: Sequence[Sequence[int]]) -> Iterator[tuple[str, PairRate, PairRate]]:
    """Yields each kind of pair (on one host, in one rack, of two hosts or of two racks), its rate alone and under load.

    Args:
      found: the measured times.
      racks: the ranks of each rack; empty if there is only one rack.
    """
    home = {rank: i for i, ranks in enumerate(racks) for rank in ranks}

    def kind(pair: Pair) -> str:
        a, b = pair
        if found.hosts[a] == found.hosts[b]:
            return "on one host"
        return "of two hosts" if not racks else "in one rack" if home[a] == home[b] else "of two racks"

    rows: dict[str, tuple[list[Floats], list[Floats]]] = {}
    for i, rounds in enumerate((found.alone, found.loaded)):
        for pairs, seconds in rounds:
            for pair, row in zip(pairs, seconds, strict=True):
                rows.setdefault(kind(pair), ([], []))[i].append(row)
    for name in ("on one host", "in one rack", "of two hosts", "of two racks"):
        if all(rows.get(name, ([], []))):
            alone, loaded = (_link(found.sizes, np.array(each)) for each in rows[name])
            yield name, alone, loaded


def _link(sizes: Sequence[int], seconds: Floats) -> PairRate:
    return PairRate(float(np.median(seconds[:, 0])), 1 / float(np.median(per_byte(sizes, seconds))))


def fit_rows(sizes: Sequence[int], rows: Sequence[Floats], source: str) -> schema.Link:
    medians = np.median(np.array(rows), axis=0)
    samples = [Sample(bytes=size, seconds=float(time)) for size, time in zip(sizes, medians, strict=True)]
    return fit(samples, "send_recv", 2, source)


def per_byte(sizes: Sequence[int], seconds: Floats) -> Floats:
    """Seconds per byte: the increase in time from the smallest to the largest size, divided by the extra bytes."""
    rest: Floats = (seconds[:, -1] - seconds[:, 0]).clip(min=0.01 * seconds[:, -1]) / (sizes[-1] - sizes[0])
    return rest


def mean_per_byte(sizes: Sequence[int], rounds: Sequence[PairRound], place: Sequence[int]) -> Floats:
    """Mean seconds per byte between every two places; NaN if no such ranks exchanged. Rank r is at `place[r]`."""
    places = max(place) + 1
    total, count = np.zeros((places, places)), np.zeros((places, places))
    for pairs, seconds in rounds:
        for (a, b), time in zip(pairs, per_byte(sizes, seconds), strict=True):
            for ends in ((place[a], place[b]), (place[b], place[a])):
                total[ends] += time
                count[ends] += 1
    with np.errstate(invalid="ignore"):
        mean: Floats = total / count
    return mean


def _nic(found: PairTimes, host: Sequence[int]) -> tuple[Literal["host", "rank"], float]:
    """Returns "host" if a host's ranks share its NIC, else "rank", and the seconds per byte of a lone transfer."""
    alone = {
        pairs[0]: float(per_byte(found.sizes, seconds)[0])
        for pairs, seconds in found.alone
        if host[pairs[0][0]] != host[pairs[0][1]]
    }
    slower, together = [], []
    for pairs, seconds in found.loaded:
        remote = [pair for pair in pairs if host[pair[0]] != host[pair[1]]]
        busy = Counter(host[rank] for pair in remote for rank in pair)
        for (a, b), time in zip(pairs, per_byte(found.sizes, seconds), strict=True):
            if (a, b) in alone and (most := max(busy[host[a]], busy[host[b]])) > 1:
                slower.append(np.log(time / alone[a, b]))
                together.append(np.log(most))
    shared = bool(slower) and np.mean(slower) > np.mean(together) / 2
    return "host" if shared else "rank", float(np.median([*alone.values()]))


def _uplinks(found: PairTimes, home: Sequence[int], remote: float) -> list[float]:
    """The time of a byte through each rack's uplink, divided by the time of a byte between hosts of one rack."""
    rounds = []  # for each round: how many pairs of each rack cross racks, and the racks and time of each such pair
    for pairs, seconds in found.loaded:
        racks = [(home[a], home[b]) for a, b in pairs]
        times = zip(racks, per_byte(found.sizes, seconds).tolist(), strict=True)
        crossing = [(ends, time) for ends, time in times if ends[0] != ends[1]]
        rounds.append((Counter(rack for ends, _ in crossing for rack in ends), crossing))
    uplinks = []
    for rack in range(max(home) + 1):
        most = max(busy[rack] for busy, _ in rounds)
        by_other: dict[int, list[float]] = {}
        for busy, crossing in rounds:
            for ends, time in crossing:
                if busy[rack] == most and rack in ends:
                    by_other.setdefault(sum(ends) - rack, []).append(time)
        fastest = min((float(np.mean(times)) for times in by_other.values()), default=remote)
        uplinks.append(ratio(fastest / max(most, 1) / remote))
    return uplinks


def ratio(value: float) -> float:
    return float(np.clip(float(f"{value:.3g}"), 1.0, 1e6))
