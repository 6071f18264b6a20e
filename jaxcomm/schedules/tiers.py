"""The moves of a hierarchical all-reduce, chunk by chunk: sums within and between hosts, then copies back."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence, Set
from typing import Final

from jaxcomm.schedules.find_template import template as find_template
from jaxcomm.schedules.list_scheduling import PendingMove
from jaxcomm.schedules.one_late_rank import straggler_table
from jaxcomm.schedules.owners import Tree, TreeFinder
from jaxcomm.schedules.ports import HostLinks, PortUse, arrival
from jaxcomm.schedules.schedule import Op

LEAD: Final = 8  # a host sums a chunk this many between-host transfer times before the chunk's turn

Row = tuple[int, int, int, Op]  # round, source, destination, op


class Tiers:
    """The moves of all chunks, in an order that gives correct values; `sum` adds the moves of one chunk."""

    def __init__(self, links: HostLinks, chunks: int, late: frozenset[int], within: int, across: int) -> None:
        self.moves: list[PendingMove] = []
        self._known_ports: dict[tuple[int, int, bool], tuple[PortUse, ...]] = {}
        self._links, self._hosts, self._chunks = links, links.hosts, chunks
        self._late, self._within, self._across = late, within, across
        hosts, slow = links.hosts, links.slow
        self._members = [[r for r, host in enumerate(hosts) if host == g] for g in range(max(hosts) + 1)]
        self._racks = [[g for g, rack in enumerate(links.racks) if rack == r] for r in sorted({*links.racks})]
        self._late_hosts = {hosts[rank] for rank in late}
        # `_spare` is 1 if every host can sum without one of its ranks. The late rank then sends no sums of its host,
        # because with these sums it would send more than any other rank.
        least = min(map(len, self._members))
        self._spare = 0
        if (
            not links.is_unlike
            and len(late) == 1
            and within == chunks
            and least > 2
            and slow <= (least - 1 if links.per_rank else 2)
        ):
            self._spare = 1
        self._rails = least - self._spare
        self._pace = max(1.0, slow / self._rails if links.per_rank else slow)  # time from one chunk to the next
        self._channels = self._rails if links.per_rank else 1
        one_late_host = len(self._late_hosts) == 1 and len(self._racks) == 1 and len(self._members) > 1
        self._templated = one_late_host and across > 0 and not links.is_unlike
        self._template_rows = self._rows_by_chunk() if self._templated else {}
        self._trees: list[Tree] = []  # the tree of each chunk; empty if all links have one rate
        if links.is_unlike:
            trees = TreeFinder(self._links, late)
            self._trees = [trees.next(chunk < min(within, across)) for chunk in range(chunks)]
            self._pace = max(1.0, trees.load / chunks)

    def sum(self, chunk: int) -> None:
        """Adds the moves of one chunk."""
        if self._trees:
            self._along(self._trees[chunk], chunk)
            return
        turn, time, slow = chunk // self._channels, self._pace * chunk, self._links.slow
        ends = [self._end(members, chunk) for members in self._members]
        for members, end in zip(self._members, ends, strict=True):
            early = chunk < self._within
            absent = self._late & {*members} if early else set[int]()
            self._gather(members, members.index(end), absent, chunk, turn, early, time, 0)
        if self._templated and chunk < self._across:
            self._by_template(chunk, ends, turn, time)
        else:
            self._by_turns(chunk, ends, turn)
        for members, end in zip(self._members, ends, strict=True):
            start = members.index(end)
            rest = members[start + 1 :] + members[:start]
            absent = self._late if chunk < self._within else set[int]()
            copies = _tree(end, rest) if chunk >= self._chunks - len(members) else _spread(end, rest, absent, turn)
            for step, (src, dst) in enumerate(copies):
                self._move(src, dst, chunk, Op.COPY, (time + 2 * slow, 2 + step))

    @property
    def delay(self) -> float:
        """The lateness that leaves enough time for the sums before the arrival, in units of a chunk's transfer within a
        host. Infinite if no rank is late, or if all chunks are summed before the arrival."""
        if not self._late or self._within == self._across == self._chunks:
            return math.inf
        sizes = [len(members) for members in self._members]
        nics = [[self._links.nics[rank] for rank in members] for members in self._members]
        unit = self._links.slow * max(
            1 / sum(1 / nic for nic in own) if self._links.per_rank else max(own) for own in nics
        )
        tiers = (max(sizes), self._within), (len(sizes), self._across * unit)
        return max((nodes - 2) / (nodes - 1) * work for nodes, work in tiers if nodes > 1)

    @property
    def _lead(self) -> float:
        return LEAD * self._links.slow

    def _end(self, members: list[int], chunk: int) -> int:
        """The rank on which the host with these members sums a chunk."""
        rails = members
        if self._spare:
            (late,) = self._late
            own = self._members[self._hosts[late]]
            if members is own or (
                self._links.per_rank and len({*map(len, self._members)}) == 1
            ):  # with a NIC per rank and hosts of equal size, all hosts skip the late rank's place
                place = own.index(late)
                rails = members[:place] + members[place + 1 :]
        return rails[chunk % len(rails)]

    def _gather(
        self,
        nodes: Sequence[int],
        root: int,
        late: Set[int],
        chunk: int,
        turn: int,
        early: bool,
        time: float,
        step: int,
    ) -> None:
        """Adds the moves that sum the nodes' parts on the root. If `early`, late nodes' parts are added last.

        `step` is 0 for sums within hosts, which come ahead of the chunk's turn, and 1 for sums between hosts.
        """
        lead = 0.0 if step else self._lead
        punctual = [node for node in nodes if node not in late]
        meet = nodes[root]
        if early and meet in late and punctual:
            meet = punctual[turn % len(punctual)]
        place, count = nodes.index(meet), len(nodes)
        others = sorted(
            {*nodes} - {nodes[root], meet}, key=lambda node: (node in late, (nodes.index(node) - place) % count)
        )
        for node in others:
            distance = (nodes.index(node) - place) % count
            joins = early and node in late
            priority = time - lead * (node not in late), step + distance
            self._move(node, nodes[root] if joins else meet, chunk, Op.REDUCE, priority)
        if meet != nodes[root]:
            self._move(meet, nodes[root], chunk, Op.REDUCE, (time, step))

    def _along(self, tree: Tree, chunk: int) -> None:
        """Adds the moves along a tree: sums from its leaves to its root, and copies back."""
        time = self._pace * chunk
        depth = {tree.top: 0}
        for child, parent in tree.edges:
            depth[child] = depth[parent] + 1
        for step, (child, parent) in enumerate(reversed(tree.edges)):
            inside = self._hosts[child] == self._hosts[parent] and child not in self._late
            self._move(child, parent, chunk, Op.REDUCE, (time - self._lead * inside, step))
        for step, (child, parent) in enumerate(tree.edges):
            self._move(parent, child, chunk, Op.COPY, (time + self._pace / 4 * (depth[child] + step), 1 + step))

    def _by_turns(self, chunk: int, ends: Sequence[int], turn: int) -> None:
        """Adds the moves between hosts and racks. Hosts take turns as their rack's root, racks as the global root."""
        early = chunk < min(self._within, self._across)
        heads, spreads = [], []
        for members in self._racks:
            count = len(members)
            time = self._pace * (chunk - turn % count * self._channels)
            nodes = [ends[host] for host in members]
            root = turn % count
            late = {node for node in nodes if self._hosts[node] in self._late_hosts} if early else set[int]()
            self._gather(nodes, root, late, chunk, turn // count, early, time, 1)
            heads.append(nodes[root])
            spreads.append((time, _spread(nodes[root], nodes[root + 1 :] + nodes[:root], late, turn // count)))
        if len(heads) > 1:
            turn //= max(map(len, self._racks))
            root = turn % len(heads)
            late_racks = {self._links.racks[host] for host in self._late_hosts} if early else set[int]()
            late = {head for head in heads if self._links.racks[self._hosts[head]] in late_racks}
            time = self._pace * chunk
            self._gather(heads, root, late, chunk, turn // len(heads), early, time, 1)
            spreads.insert(0, (time, _spread(heads[root], heads[root + 1 :] + heads[:root], late, turn // len(heads))))
        for time, copies in spreads:
            for step, (src, dst) in enumerate(copies):
                lead = len(self._members) + step
                priority = time + self._links.slow * lead, 1
                self._move(src, dst, chunk, Op.COPY, priority)

    def _by_template(self, chunk: int, ends: list[int], turn: int, time: float) -> None:
        """Adds the moves between hosts by the schedule for one late rank, in which each host stands for a rank.

        Before these moves, the hosts that are not late sum their parts.
        """
        (late,) = self._late_hosts
        others = [host for host in range(len(ends)) if host != late]
        order = [ends[host] for host in (*others, late)]
        owner = order[turn % len(others)]
        early = chunk < self._within
        self._gather(order[:-1], turn % len(others), set(), chunk, turn, early, time, 1)
        assert owner != order[-1]
        rows = self._template_rows[chunk]
        exchanged = {(src, dst) for _, src, dst, op in rows if op == Op.REDUCE}
        for round_, src, dst, op in rows:
            both = op == Op.REDUCE and (dst, src) in exchanged
            if not (both and src < dst):  # an exchange is one move for both directions
                priority = time + self._links.slow * (round_ - turn), 1
                self._move(order[src], order[dst], chunk, op, priority, exchange=both)

    def _rows_by_chunk(self) -> dict[int, list[Row]]:
        """The template's transfers of each chunk.

        A channel is a NIC or a host's shared link. Every channel has chunks of its own, to which the template applies.
        """
        hosts, found = len(self._members), defaultdict[int, list[Row]](list)
        for channel in range(self._channels):
            own = range(channel, self._across, self._channels)
            if own:
                template = find_template(hosts) if len(own) > 1 else None
                for round_, src, dst, index, op in straggler_table(hosts, hosts - 1, len(own), template).tolist():
                    found[own[index]].append((round_, src, dst, Op(op)))
        return found

    def _move(
        self, src: int, dst: int, chunk: int, op: Op, priority: tuple[float, int], exchange: bool = False
    ) -> None:
        if (src, dst, exchange) not in self._known_ports:
            links = [(src, dst), (dst, src)][: 1 + exchange]
            self._known_ports[src, dst, exchange] = tuple(use for link in links for use in self._links.between(*link))
        ports = self._known_ports[src, dst, exchange]
        self.moves.append(PendingMove(priority, src, dst, chunk, op, exchange, arrival(ports), ports))


def _spread(root: int, rest: list[int], late: Set[int], turn: int) -> list[tuple[int, int]]:
    """Returns the copies (source, destination) that bring the root's sum to the rest.

    A late root makes as many copies as there are late nodes, itself included. Punctual nodes make the remaining copies.
    A late node also sends its part of every chunk that another node sums. With this number of copies, a late node
    sends no more than other nodes do.
    """
    punctual = [node for node in rest if node not in late]
    if root not in late or not punctual:
        return [(root, node) for node in rest]
    turn %= len(punctual)
    punctual = punctual[turn:] + punctual[:turn]
    count = 1 + len(rest) - len(punctual)
    first = (punctual + [node for node in rest if node in late])[:count]
    helpers = punctual[:count]
    left = [node for node in rest if node not in first]
    return [(root, node) for node in first] + [(helpers[i % len(helpers)], node) for i, node in enumerate(left)]


def _tree(root: int, rest: list[int]) -> list[tuple[int, int]]:
    """Returns copies (source, destination) from the root to the rest; each step doubles the number of holders."""
    have, copies = [root], list[tuple[int, int]]()
    left = list(rest)
    while left:
        for node in have[:]:
            if left:
                copies.append((node, left.pop(0)))
                have.append(copies[-1][1])
    return copies
