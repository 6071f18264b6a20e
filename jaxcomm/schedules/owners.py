"""Trees along which chunks are summed if links have different rates, so that all links finish at the same time.

A chunk is summed along a tree of ranks, and its sum returns along the same tree. Ranks with faster links sum more of
the chunks. If a host's ranks first sum their parts within the host, and one of them sends the sum on, the host's shared
links carry less. If instead each rank sends its part to another host itself, the links within the host carry less.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence, Set
from itertools import pairwise
from typing import Final, NamedTuple

from jaxcomm.schedules.ports import HostLinks, Port

# A link's price per second is r to the power of 2^5, where r is the link's load with one more chunk, divided by the
# greatest such load of all links. So only the busiest links have prices well above 0.
_SQUARINGS: Final = 5
_DEEPER: Final = 0.001  # added to the cost of each edge that is not in the tree of `_in_tiers`
_TIERS: Final = range(3)  # 0: moves within a host; 1: between hosts of a rack; 2: between racks

Prices = list[list[tuple[float, float]]]  # by tier and rank: the prices of receiving a chunk and of sending a chunk


class Tree(NamedTuple):
    """The tree of a chunk: its root `top`, which has the sum, and its edges (child, parent) from the root down."""

    top: int
    edges: tuple[tuple[int, int], ...]


class TreeFinder:
    """Finds the trees of chunks, one by one. Each tree is the cheapest at prices that rise with the links' loads.

    With many chunks the time of the busiest link tends to the least time of any all-reduce, for this reason: if the
    prices per second sum to 1, the price of an all-reduce is at most its time. The messages that gather a chunk's parts
    contain a tree, and the messages that spread the sum contain another tree. So an all-reduce costs at least the price
    of the cheapest tree in both directions.
    """

    def __init__(self, links: HostLinks, late: Set[int] = frozenset()) -> None:
        """Takes the links and the late ranks. Punctual ranks sum early chunks (see `next`) before late ranks arrive."""
        self._links, self._late, self._ranks = links, late, range(len(links.hosts))
        self._loads: dict[bool, defaultdict[Port, float]] = {early: defaultdict(float) for early in (False, True)}
        racks = [links.racks[host] for host in links.hosts]
        # For each tier, each rank's part: the rank itself, its host, its rack, or the whole network. Parts of one tier
        # make up the parts of the next tier.
        self._parts: list[Sequence[int]] = [self._ranks, links.hosts, racks, [0] * len(racks)]
        # For each tier, the ranks of each part of the next tier, except parts that contain a single part of this tier.
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
        hosts = {links.hosts[rank] for rank in late}  # their ranks sum an early chunk only if no other rank can
        self._reluctance = [(rank in late) + (host in hosts) for rank, host in enumerate(links.hosts)]

    @property
    def load(self) -> float:
        """Load of the busiest link, in units of a chunk's transfer within a host.

        For an early chunk, only the messages after the late ranks' arrival count.
        """
        return max(self._all_loads().values(), default=0.0)

    def next(self, early: bool = False) -> Tree:
        """Returns the tree of the next chunk, and adds the chunk's load to the links.

        Args:
          early: whether the other ranks sum their parts before the late ranks arrive. The messages of these sums are
            then free, and ranks of a late rank's host sum no parts of other hosts. Prices for an early chunk depend on
            the loads of early chunks. Prices for other chunks depend on the loads of all chunks.
        """
        early = early and bool(self._late)
        if early:
            tree = self._in_tiers(self._prices(self._loads[True]), self._reluctance)
        else:
            tree = self._spanning(self._prices(self._all_loads()))
        for child, parent in tree.edges:
            both = [(child, parent), (parent, child)]
            for move in both[1:] if early and child not in self._late else both:
                for use in self._links.between(*move):
                    self._loads[early][use.port] += use.seconds
        return tree

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

    def _spanning(self, prices: Prices) -> Tree:
        """The cheapest of all trees, but edges of the tree of `_in_tiers` are preferred if they cost little more.

        The tree of `_in_tiers` is shallower. An edge costs as much as its two ranks together. So the edges of two ranks
        in each group are enough: of the cheapest rank, and of the cheapest rank outside that rank's part.
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

    def _in_tiers(self, prices: Prices, reluctance: Sequence[int]) -> Tree:
        """The cheapest tree that sums on one rank of each host, then on one rank of each rack.

        These ranks have the least `reluctance` in their host or rack. Among several such ranks the price decides. The
        price of an edge is the price of receiving a chunk at the child plus the price of sending a chunk at the parent.
        """
        summed = [0.0 for _ in self._ranks]  # for each rank, the price of summing its part on this rank
        heads: list[dict[int, int]] = []  # for each tier and part, the rank that sums the part and sends on the sum
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
        return Tree(top, tuple(edges))


def _from_top(top: int, neighbours: Sequence[Collection[int]]) -> Tree:
    edges, reached = list[tuple[int, int]](), [(top, top)]
    for parent, above in reached:
        children = sorted({*neighbours[parent]} - {above}, key=lambda rank: (rank - parent) % len(neighbours))
        edges += [(child, parent) for child in children]
        reached += [(child, parent) for child in children]
    return Tree(top, tuple(edges))
