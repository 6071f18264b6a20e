"""The ways of chunks where links have unlike rates: trees along which they are summed so that all links end at once.

A chunk is summed along a tree of ranks, and its sum comes back along the same tree. Ranks whose links are faster sum
more of the chunks. A host, or a rack, either sums its parts on one of its ranks before it sends them on, which spares
what its ranks share, or its ranks send on their own, which spares the links of the rank that would sum.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from typing import Final, NamedTuple

from jaxcomm.schedules.ports import HostLinks, Port

# The price of a link is its load beside the busiest link's to the power of 2^5: almost only the busiest links count.
_SQUARINGS: Final = 5


class Way(NamedTuple):
    """The tree of a chunk: the rank that sums all, and by rack and by host the rank that sums their parts.

    None: the ranks of the host, or the hosts of the rack, send on their own.
    """

    top: int
    racks: tuple[int | None, ...]
    hosts: tuple[int | None, ...]


class Ways:
    """Finds the way of one chunk after the other: the cheapest tree at prices that rise with the links' loads."""

    def __init__(self, links: HostLinks, late: Set[int] = frozenset()) -> None:
        """Takes the links, and the late ranks, whose part is not awaited in `early` chunks."""
        self._links, self._late = links, late
        self._loads: dict[bool, defaultdict[Port, float]] = {early: defaultdict(float) for early in (False, True)}

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
        late = self._late if early else frozenset[int]()
        way = _Cheapest(self._links, late, self._loads[True] if early else self._all_loads()).way()
        for child, parent in _edges(way, self._links):
            both = [(parent, child)] if late and child not in late else [(child, parent), (parent, child)]
            for use in (use for move in both for use in self._links.between(*move)):
                self._loads[early][use.port] += use.seconds
        return way

    def _all_loads(self) -> defaultdict[Port, float]:
        both = defaultdict[Port, float](float)
        for loads in self._loads.values():
            for port, seconds in loads.items():
                both[port] += seconds
        return both


def _edges(way: Way, links: HostLinks) -> Iterator[tuple[int, int]]:
    """The children and parents of a way's tree."""
    for rank, host in enumerate(links.hosts):
        end, root = way.hosts[host], way.racks[links.racks[host]]
        if end is not None and rank != end:
            yield rank, end
        elif root is not None and rank != root:
            yield rank, root
        elif rank != way.top:
            yield rank, way.top


class _Offer(NamedTuple):
    """The price of bringing parts to a parent, less the parent's own: summed on a rank, or `apart` by `ranks` ranks."""

    summed: float
    end: int
    apart: float
    ranks: int

    def under(self, parent: float) -> tuple[float, int | None]:
        """The price under a parent that takes `parent` for each part, and the rank that sums, if any."""
        whole, each = self.summed + parent, self.apart + self.ranks * parent
        return (each, None) if each < whole else (whole, self.end)


class _Cheapest:
    """The cheapest way at the prices of one moment.

    Of every rank it knows the prices as a child, which sends its part and gets the sum, and as a parent, which gets
    that part and sends the sum, by the rack that is at the other end.
    """

    def __init__(self, links: HostLinks, absent: Set[int], loads: dict[Port, float]) -> None:
        self._links, self._absent, self._loads = links, absent, loads
        self._most = max(loads.values(), default=0.0) or 1.0
        ranks, self._racks = range(len(links.hosts)), range(max(links.racks) + 1)
        self._members = [[rank for rank in ranks if links.hosts[rank] == host] for host in range(max(links.hosts) + 1)]
        self._inner = [self._pair("send", "receive", rank) for rank in ranks]
        self._outer = [[self._outside(rank, away) for away in self._racks] for rank in ranks]
        self._offers = [[self._offer(host, away) for away in self._racks] for host in range(len(self._members))]

    def way(self) -> Way:
        """The way itself."""
        tops = self._may_sum(range(len(self._links.hosts)))
        roots = {rank: self._summed_in_rack(rank) for rank in range(len(self._links.hosts))}
        racks = {(rack, away): self._rack_offer(rack, away, roots) for rack in self._racks for away in self._racks}
        found: tuple[float, Way] | None = None
        for top in tops:
            home = self._rack_of(top)
            price, ends = roots[top]
            heads: list[int | None] = []
            for rack in self._racks:
                cost, head, own = (0.0, top, ends) if rack == home else self._under(racks[rack, home], rack, top, roots)
                price += cost
                heads.append(head)
                ends = ends | own
            if found is None or price < found[0]:
                found = price, Way(top, tuple(heads), tuple(ends[host] for host in range(len(self._members))))
        assert found
        return found[1]

    def _rack_of(self, rank: int) -> int:
        return self._links.racks[self._links.hosts[rank]]

    def _pair(self, out: str, into: str, index: int) -> tuple[float, float]:
        """The prices of a chunk through links of one unit, for a child and for a parent."""
        sends, receives = self._price((out, index)), self._price((into, index))
        return (receives, sends) if self._absent else (sends + receives, sends + receives)

    def _price(self, port: Port) -> float:
        price = self._loads.get(port, 0.0) / self._most
        for _ in range(_SQUARINGS):
            price *= price
        return price

    def _outside(self, rank: int, away: int) -> tuple[float, float]:
        """The prices of a chunk between the rank and one of another host, in the rack `away`."""
        links, host, rack = self._links, self._links.hosts[rank], self._rack_of(rank)
        pairs = [(links.nics[rank], self._pair("NIC out", "NIC in", rank))]
        if not links.per_rank:
            pairs.append((links.nics[rank], self._pair("host out", "host in", host)))
        if rack != away:
            pairs.append((links.uplinks[rack], self._pair("uplink out", "uplink in", rack)))
        child, parent = (links.slow * sum(cost * pair[side] for cost, pair in pairs) for side in (0, 1))
        return child, parent

    def _may_sum(self, ranks: Sequence[int]) -> list[int]:
        """Of these ranks, those that may sum for other hosts, too."""
        hosts = {self._links.hosts[rank] for rank in self._absent}
        punctual = [rank for rank in ranks if rank not in self._absent]
        return [rank for rank in punctual if self._links.hosts[rank] not in hosts] or punctual or [*ranks]

    def _summed_on(self, end: int) -> float:
        """The price of summing a host's parts on one of its ranks."""
        members = self._members[self._links.hosts[end]]
        children = sum(self._inner[rank][0] for rank in members if rank != end)
        return children + (len(members) - 1) * self._inner[end][1]

    def _offer(self, host: int, away: int) -> _Offer:
        members = self._members[host]
        ends = [rank for rank in members if rank not in self._absent] or members
        price, end = min((self._summed_on(end) + self._outer[end][away][0], end) for end in ends)
        apart = math.inf if self._absent else sum(self._outer[rank][away][0] for rank in members)
        return _Offer(price, end, apart, len(members))

    def _summed_in_rack(self, root: int) -> tuple[float, dict[int, int | None]]:
        """The price of summing a rack's parts on one of its ranks, and the ranks on which its hosts sum theirs."""
        own, rack = self._links.hosts[root], self._rack_of(root)
        price, ends = self._summed_on(root), dict[int, int | None]({own: root})
        for host, each in enumerate(self._links.racks):
            if each == rack and host != own:
                cost, ends[host] = self._offers[host][rack].under(self._outer[root][rack][1])
                price += cost
        return price, ends

    def _rack_offer(self, rack: int, away: int, roots: dict[int, tuple[float, dict[int, int | None]]]) -> _Offer:
        ranks = self._may_sum([rank for rank in roots if self._rack_of(rank) == rack])
        price, root = min((roots[rank][0] + self._outer[rank][away][0], rank) for rank in ranks)
        return _Offer(price, root, 0.0, 0)

    def _under(
        self, offer: _Offer, rack: int, top: int, roots: dict[int, tuple[float, dict[int, int | None]]]
    ) -> tuple[float, int | None, dict[int, int | None]]:
        """The price of a rack's parts under the top, the rank that sums them, and those that sum its hosts'."""
        home, parent = self._rack_of(top), self._outer[top][rack][1]
        hosts = [host for host, each in enumerate(self._links.racks) if each == rack]
        apart = {host: self._offers[host][home].under(parent) for host in hosts}
        price = sum(cost for cost, _ in apart.values())
        if not self._absent and price < offer.summed + parent:
            return price, None, {host: end for host, (_, end) in apart.items()}
        return offer.summed + parent, offer.end, roots[offer.end][1]
