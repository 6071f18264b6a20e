"""Divides ranks into groups. Divisions are drawn within a cost limit and picked by how well they mix ranks.

The module also builds the pattern of the source paper.

Source: Wang et al., "DS-Sync", section III-B; the divisions by cost and their choice are ours.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jaxcomm.plan.consensus import averaged
from jaxcomm.plan.groups import GroupCosts

Division = list[list[int]]
SLACK: Final = 1 + 1e-12  # tolerance for sums whose terms are added in another order
DRAWS: Final = 4096  # draws per iteration times ranks; but an iteration has at least 4 and at most 64 draws
SKETCH: Final = 64  # random numbers per rank that stand for the rank's model


@dataclass(frozen=True)
class Shuffle:
    """Draws divisions of all ranks into few groups, in which no group takes longer than `limit` seconds.

    In every iteration each rack sends one rank to a group between racks. The rack's other ranks join this group as far
    as the limit allows, or are divided within their rack. Slower ranks choose their partners first, so no partner is
    slower than the rank that chose it. The remaining ranks form one large group if the limit allows it. The ranks that
    are sent and the partners are drawn at random.
    """

    links: GroupCosts
    limit: float

    def iterations(self, period: int, seed: int) -> list[Division]:
        """Returns `period` divisions, each of which is the best of several random draws.

        The best draw is the one that leaves the least disagreement if the ranks average first in all divisions chosen
        before and then in this draw.
        """
        dice, ranks = random.Random(seed), len(self.links.nics)
        values = np.random.default_rng(seed).standard_normal((ranks, SKETCH)) if ranks > SKETCH else np.eye(ranks)
        values = values - values.mean(axis=0)
        found = []
        for _ in range(period):
            draws = [self._draw(dice) for _ in range(max(4, min(64, DRAWS // ranks)))]
            results = [averaged(values, draw) for draw in draws]
            best = min(range(len(draws)), key=lambda index: round(float(np.square(results[index]).sum()), 9))
            values = results[best]
            found.append(draws[best])
        return found

    def _draw(self, dice: random.Random) -> Division:
        racks, nics = self.links.racks, self.links.nics
        senders = [dice.choice(self._able(rack.ranks, rack.uplink)) for rack in racks]
        slowness = {rank: max(nics[rank], rack.uplink) for rank, rack in zip(senders, racks, strict=True)}
        between = [group for group in self._divide(senders, slowness, dice) if len(group) > 1]
        crossing = {rank for group in between for rank in group}
        staying = []
        for rack in racks:
            left = [rank for rank in rack.ranks if rank not in crossing]
            staying.append(self._divide(left, {rank: nics[rank] for rank in left}, dice))
        for group in between:
            self._absorb(group, [staying[index] for index in self.links.crossed(group)])
        return sorted(sorted(group) for group in (*between, *(group for within in staying for group in within)))

    def _able(self, ranks: Sequence[int], uplink: float) -> Sequence[int]:
        """The ranks of a rack that may share a group with other racks' ranks: their NIC is no slower than the uplink.

        If all NICs are slower, these are the ranks with the fastest NIC. Returns all ranks if only one qualifies,
        because otherwise this rank would leave its rack in every iteration.
        """
        most = max(uplink, min(self.links.nics[rank] for rank in ranks))
        able = [rank for rank in ranks if self.links.nics[rank] <= most]
        return able if len(able) > 1 else ranks

    def _divide(self, ranks: Sequence[int], slowness: Mapping[int, float], dice: random.Random) -> Division:
        """Divides greedily: the slowest free rank takes random free partners up to the limit, until no rank is free."""
        order = sorted(ranks, key=lambda _: dice.random())
        free, found = dict.fromkeys(order), []
        for head in sorted(order, key=lambda rank: -slowness[rank]):
            if head in free:
                del free[head]
                size = self._most(slowness[head], len(free) + 1)
                found.append([head, *(free.popitem()[0] for _ in range(size - 1))])
        return found

    def _most(self, slowness: float, ranks: int) -> int:
        """The largest size, up to `ranks`, at which a group of this slowness stays within the limit."""
        low, high = 1, ranks
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.links.ring(middle, slowness) <= self.limit * SLACK
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _absorb(self, group: list[int], staying: Sequence[Division]) -> None:
        """Merges groups within racks, the largest first, into the group between racks, as far as the limit allows."""
        for within in staying:
            for other in sorted(within, key=len, reverse=True):
                if self.links.seconds([[*group, *other]]) <= self.limit * SLACK:
                    group += other
                    within.remove(other)


def path(links: GroupCosts) -> list[Division]:
    """Divisions into pairs of neighbours on a path through all ranks.

    With these divisions the ranks' values converge on every network, though slowly, and no group takes longer than
    `GroupCosts.least`.
    """
    heads = [rack.ranks[0] for rack in links.racks]
    phases = [[pair for rack in links.racks for pair in _pairs(rack.ranks, start)] for start in (0, 1)]
    phases += [_pairs(heads, start) for start in (0, 1)]
    return [_completed(phase, links) for phase in phases if phase]


def racks_in_turn(links: GroupCosts) -> list[Division]:
    """In the first iteration each rack is a group. In each later iteration, one group has one rank of every rack.

    If all racks have equal size, all ranks agree exactly after one period.
    """
    racks = [[*rack.ranks] for rack in links.racks]
    turns = range(max(map(len, racks))) if len(racks) > 1 else ()
    return [_completed(groups, links) for groups in (racks, *([[r[t % len(r)] for r in racks]] for t in turns))]


def paper(links: GroupCosts) -> list[Division]:
    """The paper's pattern (III-B1 to 3): one group of the racks' representatives, and in each rack a group of the rest.

    The representative of a rack with a slow uplink is paired with the representative of another rack, a different one
    in every iteration. A rank with a slow NIC stays in its rack and is paired there if the rack has enough other ranks.
    The paper leaves two points open. Here a link is slow if it is slower than the fastest link of its kind, and a rank
    without a regular partner joins the large group.
    """
    racks, nics = links.racks, links.nics
    regular = [[r for r in rack.ranks if nics[r] == min(nics[r] for r in rack.ranks)] for rack in racks]
    least = min(rack.uplink for rack in racks)
    found = []
    for t in range(max(map(len, [racks, *regular]))):
        senders = [able[t % len(able)] for able in regular] if len(racks) > 1 else []
        crossing = set(senders)
        slow = [rank for rack, rank in zip(racks, senders, strict=False) if rack.uplink > least]
        groups = _hub(slow, [rank for rack, rank in zip(racks, senders, strict=False) if rack.uplink == least], t)
        for rack, able in zip(racks, regular, strict=True):
            staying = [rank for rank in able if rank not in crossing]
            slow = [rank for rank in rack.ranks if rank not in {*able}]
            enough = len(staying) > len(slow)
            groups += _hub(slow, staying, t) if enough else [slow + staying]
        found.append(_completed([group for group in groups if group], links))
    return found


def _hub(slow: Sequence[int], others: Sequence[int], t: int) -> Division:
    """Pairs each slow rank with one of `others`. The pairs change with `t`. The remaining ranks form one group."""
    turned = t % max(1, len(others))
    others = [*others[turned:], *others[:turned]]
    pairs = min(len(slow), len(others))
    rest = [*slow[pairs:], *others[pairs:]]
    return [[one, other] for one, other in zip(slow, others, strict=False)] + ([rest] if rest else [])


def _pairs(ranks: Sequence[int], start: int) -> Division:
    return [list(ranks[i : i + 2]) for i in range(start, len(ranks) - 1, 2)]


def _completed(groups: Division, links: GroupCosts) -> Division:
    """The groups, and a group of one for each remaining rank."""
    busy = {rank for group in groups for rank in group}
    return sorted([sorted(group) for group in groups] + [[rank] for rank in range(len(links.nics)) if rank not in busy])
