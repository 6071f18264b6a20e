"""The ways of chunks where links have unlike rates: trees along which they are summed so that all links end at once.

A chunk is summed along a tree of ranks, and its sum comes back along the same tree. Ranks whose links are faster sum
more of the chunks. Parts of a host's ranks may be summed within the host before one of them sends the sum on, which
spares what the host's ranks share, or ranks send to another host on their own, which spares the links within.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from itertools import pairwise
from typing import Final, NamedTuple

from jaxcomm.schedules.ports import HostLinks, Port

# The price of a link is its load with one more chunk beside the busiest link's, to the power of 2^5: almost only the
# busiest links count.
_SQUARINGS: Final = 5
_DEEPER: Final = 0.001  # for a smaller gain in price no move leaves the tree in tiers
_TIERS: Final = range(3)  # moves within a host, within a rack, and between racks

Prices = list[list[tuple[float, float]]]  # by tier and rank: of a chunk into the rank, and out of it


class Way(NamedTuple):
    """The tree of a chunk: the rank that sums all, and its edges (child, parent) from the top on."""

    top: int
    edges: tuple[tuple[int, int], ...]


class Ways:
    """Finds the way of one chunk after the other: the cheapest tree at prices that rise with the links' loads.

    The time of the busiest link tends to the least that any all-reduce takes. At prices per second that add up to 1 an
    all-reduce costs at most its time. The messages that bring a chunk's parts together contain a tree, and those that
    spread the sum another one, so it costs at least the cheapest tree in both directions.
    """

    def __init__(self, links: HostLinks, late: Set[int] = frozenset()) -> None:
        """Takes the links, and the late ranks, whose part is not awaited in `early` chunks."""
        self._links, self._late, self._ranks = links, late, range(len(links.hosts))
        self._loads: dict[bool, defaultdict[Port, float]] = {early: defaultdict(float) for early in (False, True)}
        racks = [links.racks[host] for host in links.hosts]
        # By tier the part of each rank; the parts of a tier make up those of the next one.
        self._parts: list[Sequence[int]] = [self._ranks, links.hosts, racks, [0] * len(racks)]
        # By tier, the ranks of each part of the next tier that has several parts of it.
        self._groups: list[list[list[int]]] = []
        for part, whole in pairwise(self._parts):
            groups = [[rank for rank in self._ranks if whole[rank] == each] for each in sorted({*whole})]
            self._groups.append([group for group in groups if len({part[rank] for rank in group}) > 1])
        self._seconds: dict[Port, float] = {}
        for rank, host in enumerate(links.hosts):
            rack, nic = links.racks[host], links.slow * links.nics[rank]
            uplink = links.slow * links.uplinks[rack]
            for names, index, seconds in (
                (("send", "receive"), rank, 1.0),
                (("NIC out", "NIC in"), rank, nic),
                (("host out", "host in"), host, nic),
                (("uplink out", "uplink in"), rack, uplink),
            ):
                self._seconds.update({(name, index): seconds for name in names})
        hosts = {links.hosts[rank] for rank in late}  # their ranks sum an early chunk only where no other can
        self._reluctance = [(rank in late) + (host in hosts) for rank, host in enumerate(links.hosts)]

    @property
    def load(self) -> float:
        """The load of the busiest link, in times of a chunk within a host; of early chunks what is left for later."""
        return max(self._all_loads().values(), default=0.0)

    def next(self, early: bool = False) -> Way:
        """The way of the next chunk, which loads the links from now on.

        Args:
          early: whether the others sum their parts before the late ranks come. Their messages are free then; ranks of a
            late rank's host sum for no others. The other chunks' ways are cheapest beside what early ones leave.
        """
        early = early and bool(self._late)
        if early:
            way = self._in_tiers(self._prices(self._loads[True]), self._reluctance)
        else:
            way = self._spanning(self._prices(self._all_loads()))
        for child, parent in way.edges:
            both = [(child, parent), (parent, child)]
            for move in both[1:] if early and child not in self._late else both:
                for use in self._links.between(*move):
                    self._loads[early][use.port] += use.seconds
        return way

    def _all_loads(self) -> defaultdict[Port, float]:
        both = defaultdict[Port, float](float)
        for loads in self._loads.values():
            for port, seconds in loads.items():
                both[port] += seconds
        return both

    def _prices(self, loads: Mapping[Port, float]) -> Prices:
        most = max(loads.get(port, 0.0) + seconds for port, seconds in self._seconds.items())

        def price(name: str, index: int) -> float:
            seconds = self._seconds[port := (name, index)]
            found = (loads.get(port, 0.0) + seconds) / most
            for _ in range(_SQUARINGS):
                found *= found
            return found * seconds

        links, made = self._links, Prices([[], [], []])
        for rank, host in enumerate(links.hosts):
            made[0].append((price("receive", rank), price("send", rank)))
            into, out = price("NIC in", rank), price("NIC out", rank)
            if not links.per_rank:
                into, out = into + price("host in", host), out + price("host out", host)
            made[1].append((into, out))
            rack = links.racks[host]
            made[2].append((into + price("uplink in", rack), out + price("uplink out", rack)))
        return made

    def _spanning(self, prices: Prices) -> Way:
        """The cheapest of all trees, or the one in tiers, which is less deep, as far as that costs little more.

        A move costs what its two ranks cost, so of the moves between parts only those with the cheapest rank, and with
        the cheapest one of the other parts, can be in it.
        """
        costs = [[into + out for into, out in tier] for tier in prices]
        edges: list[tuple[float, int, int]] = []
        for tier, cost in enumerate(costs):
            part = self._parts[tier]
            for group in self._groups[tier]:
                first = min(group, key=cost.__getitem__)
                second = min((rank for rank in group if part[rank] != part[first]), key=cost.__getitem__)
                for hub in (first, second):
                    edges += [(cost[r] + cost[hub] + _DEEPER, r, hub) for r in group if part[r] != part[hub]]
        in_tiers = self._in_tiers([[(each, each) for each in tier] for tier in costs], [0 for _ in self._ranks])
        for child, parent in in_tiers.edges:
            cost = costs[next(tier for tier in _TIERS if self._parts[tier + 1][child] == self._parts[tier + 1][parent])]
            edges.append((cost[child] + cost[parent], child, parent))
        joined, neighbours = [*self._ranks], [list[int]() for _ in self._ranks]
        for _, rank, hub in sorted(edges):
            old, new = joined[rank], joined[hub]
            if old != new:
                joined = [new if each == old else each for each in joined]
                neighbours[rank].append(hub)
                neighbours[hub].append(rank)
        return _from_top(max(self._ranks, key=lambda rank: len(neighbours[rank])), neighbours)

    def _in_tiers(self, prices: Prices, reluctance: Sequence[int]) -> Way:
        """The cheapest tree that sums a host's parts on one rank, then a rack's, each on one of the least reluctance.

        A child pays for a chunk into it, a parent for one out of it.
        """
        summed = [0.0 for _ in self._ranks]  # the price of summing a part on each of its ranks
        heads: list[dict[int, int]] = []  # by tier and part the rank that sums it for others
        for tier in _TIERS:
            part = self._parts[tier]
            heads.append({})
            for rank in sorted(self._ranks, key=lambda r: (reluctance[r], summed[r] + prices[tier][r][0])):
                heads[tier].setdefault(part[rank], rank)
            for group in self._groups[tier]:
                offers = {part[r]: (head := heads[tier][part[r]], summed[head] + prices[tier][head][0]) for r in group}
                whole = sum(price for _, price in offers.values())
                for rank in group:
                    summed[rank] += whole - offers[part[rank]][1] + (len(offers) - 1) * prices[tier][rank][1]
        top = min(self._ranks, key=lambda rank: (reluctance[rank], summed[rank]))
        roots, edges = {0: top}, list[tuple[int, int]]()
        for tier in reversed(_TIERS):
            above, roots = roots, dict[int, int]()
            for number, head in heads[tier].items():
                root = above[self._parts[tier + 1][head]]
                is_own = self._parts[tier][root] == number
                roots[number] = root if is_own else head
                edges += [] if is_own else [(head, root)]
        return Way(top, tuple(edges))


def _from_top(top: int, neighbours: Sequence[Collection[int]]) -> Way:
    edges, reached = list[tuple[int, int]](), [(top, top)]
    for parent, above in reached:
        children = sorted({*neighbours[parent]} - {above}, key=lambda rank: (rank - parent) % len(neighbours))
        edges += [(child, parent) for child in children]
        reached += [(child, parent) for child in children]
    return Way(top, tuple(edges))
