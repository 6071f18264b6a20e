"""Schedules along trees, improved for one size of call on one network. The core searches (cc/search/tree_search.h).

Every chunk is summed along one tree and copied along another, and a message is one chunk. Hierarchical schedules and
schedules for one late rank are of this kind. A chunk's trees also say on which rank its sum waits for the late rank.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from jaxcomm.ffi.arguments import ChunkTrees, TreeNetwork, TreeTimes
from jaxcomm.ffi.cpu import CPU
from jaxcomm.schedules.schedule import Op, Schedule
from jaxcomm.schedules.transfers import listed

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class MessageSeconds(NamedTuple):
    """The time of a message between two ranks: `alpha` plus the seconds of its bytes.

    The last dimension of each array is the pair of ranks, numbered source · n + destination.

    Attributes:
      alpha: seconds of every message in addition to those of its bytes.
      remote: whether the message uses other ports than messages within a host.
      port_s: seconds of the bytes at the slower of the two ports.
      link: [4, n²], the numbers of the shared links on the path; -1 means no link.
      link_s: [4, n²], seconds of the bytes at these links.
    """

    alpha: float
    remote: NDArray[np.bool_]
    port_s: Floats
    link: Ints
    link_s: Floats


class TimedMessage(NamedTuple):
    """A chunk that goes from `src` to `dst` between the times `start` and `end`; in an exchange, in both directions."""

    start: float
    end: float
    src: int
    dst: int
    chunk: int
    op: Op
    exchange: bool


class Trees(NamedTuple):
    """Trees in the core's format.

    `up[chunk, rank]` is the rank to which `rank` sends its sum, `down[chunk, rank]` the rank from which it gets the
    total. `partner[chunk]` is the rank that exchanges sums with the root, or -1. `order` lists all messages by urgency.
    """

    up: Ints
    down: Ints
    partner: Ints
    order: Ints

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        """Returns the trees of a schedule. Raises ValueError if a chunk is not summed and copied along trees."""
        shape = schedule.num_chunks, schedule.ranks
        up, down, partner = np.full(shape, -1), np.full(shape, -1), np.full(shape[0], -1)
        order: list[int] = []
        for phase in schedule.phases:
            rows = phase.table().tolist()
            sums = {tuple(row[:4]) for row in rows if row[4] == Op.REDUCE}
            for round_, src, dst, chunk, op in rows:
                exchange = op == Op.REDUCE and (round_, dst, src, chunk) in sums
                if exchange and src > dst:
                    continue
                parents, child, parent = (up, src, dst) if op == Op.REDUCE else (down, dst, src)
                if parents[chunk, child] >= 0 or (exchange and partner[chunk] >= 0):
                    raise ValueError(
                        f"round {round_} of the {phase.kind} schedule: "
                        f"rank {child} gets or passes on chunk {chunk} twice"
                    )
                parents[chunk, child] = parent
                if exchange:
                    partner[chunk], down[chunk, child] = child, parent
                order.append(2 * (chunk * schedule.ranks + child) + (op == Op.COPY))
        roots = up < 0
        if (roots.sum(axis=1) != 1).any() or (roots != (down < 0)).any():
            raise ValueError(f"the {schedule.kind} schedule has a chunk whose sum is not made on one rank")
        order += sorted({*range(2 * schedule.ranks * schedule.num_chunks)} - {*order})
        return cls(up, down, partner, np.array(order))


def improve(schedule: Schedule, links: MessageSeconds, late: int, delay: float, tries: int, seed: int) -> Schedule:
    """Returns a schedule with the trees and the message order that the search found to be fastest in its model.

    Args:
      schedule: the schedule from which the search starts.
      links: the times of the schedule's messages, each of which is one chunk.
      late: the late rank.
      delay: seconds by which the late rank is late; all other ranks begin at once.
      tries: number of changes to try.
      seed: seed of the search; equal arguments give equal schedules.

    Raises:
      ValueError: a chunk is not summed along one tree and copied along another.
    """
    trees = Trees.of(schedule)
    ranks, chunks = schedule.ranks, schedule.num_chunks
    ready = np.zeros(ranks)
    ready[late] = delay
    times = np.empty((2, 2 * ranks * chunks))
    network = (
        ready,
        links.remote.astype(np.int64),
        links.port_s,
        np.ascontiguousarray(links.link, np.int64),
        np.ascontiguousarray(links.link_s),
    )
    shape = ranks, chunks, int(links.link.max()) + 1, links.alpha
    CPU.call(
        "improve_trees",
        TreeNetwork(*shape, *network),
        *(tries, seed),
        *(ChunkTrees(*trees), TreeTimes(*times)),
    )
    return _listed(_messages(trees, times), ranks, late, chunks)


def _messages(trees: Trees, times: Floats) -> list[TimedMessage]:
    """The messages in the order in which they start."""
    ranks = trees.up.shape[1]
    found: list[TimedMessage] = []
    for message in np.flatnonzero(times[0] >= 0).tolist():
        (chunk, rank), copied = divmod(message // 2, ranks), message % 2
        src, dst = (int(trees.down[chunk, rank]), rank) if copied else (rank, int(trees.up[chunk, rank]))
        start, end = times[:, message].tolist()
        exchange = not copied and int(trees.partner[chunk]) == rank
        found.append(TimedMessage(start, end, src, dst, chunk, Op(copied), exchange))
    return sorted(found)


def _listed(messages: Sequence[TimedMessage], ranks: int, late: int, chunks: int) -> Schedule:
    """Returns a schedule with each message in the first round in which its ports are free and its data is available."""
    begins = _second_phase(messages, late)
    tables: tuple[list[int], list[int]] = [], []
    used: tuple[dict[tuple[str, int], int], ...] = defaultdict(int), defaultdict(int)
    there: tuple[dict[tuple[int, int], int], ...] = defaultdict(int), defaultdict(int)
    for message in messages:
        _, _, src, dst, chunk, op, exchange = message
        phase = int(_is_second(message, begins))
        ways = [(src, dst), (dst, src)][: 1 + exchange]
        ports = [port for way in ways for port in zip(("send", "receive"), way, strict=True)]
        round_ = max(*(used[phase][port] for port in ports), *(there[phase][way[0], chunk] for way in ways))
        used[phase].update(dict.fromkeys(ports, round_ + 1))
        for sender, receiver in ways:
            there[phase][receiver, chunk] = round_ + 1
            tables[phase].extend((round_, sender, receiver, chunk, op))
    return listed(ranks, late, chunks, *map(tuple, tables))


def _second_phase(messages: Sequence[TimedMessage], late: int) -> dict[int, float]:
    """For each rank, the time at which its first message of the second phase starts.

    The first phase becomes the precondition. All messages of the late rank are in the second phase. Any other rank
    begins the second phase only when its messages of the first phase have ended.
    """
    begins = {late: -math.inf}
    while True:
        known = dict(begins)
        for message in messages:
            if _is_second(message, begins):
                for rank in (message.src, message.dst):
                    begins[rank] = min(begins.get(rank, math.inf), message.start)
        if begins == known:
            return begins


def _is_second(message: TimedMessage, begins: dict[int, float]) -> bool:
    return any(message.end > begins.get(rank, math.inf) for rank in (message.src, message.dst))
