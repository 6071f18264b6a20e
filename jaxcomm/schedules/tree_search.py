"""Schedules along trees, improved for one size of call on one network; the core searches (cc/search/tree_search.h).

Every chunk is summed along one tree and copied along another, and a message is one chunk. Hierarchical schedules and
those for one late rank are of this kind; where the sum of a chunk stays until the late rank comes is part of its trees.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from jaxcomm.ffi.cpu import CPU
from jaxcomm.schedules.schedule import Op, Schedule
from jaxcomm.schedules.transfers import listed

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class MessageSeconds(NamedTuple):
    """The time of a message between two ranks, by source · n + destination: `alpha` beside the seconds of its bytes.

    Attributes:
      alpha: seconds of any message.
      remote: whether the ports are not those of messages within a host.
      port_s: seconds of the bytes at the slower of the two ports.
      link: [4, n²], the shared links on the way, each with a number of its own; -1: none.
      link_s: [4, n²], seconds of the bytes at those.
    """

    alpha: float
    remote: NDArray[np.bool_]
    port_s: Floats
    link: Ints
    link_s: Floats


class TimedMessage(NamedTuple):
    """A chunk on its way from `start` to `end`, or, of an exchange, on its way in both directions."""

    start: float
    end: float
    src: int
    dst: int
    chunk: int
    op: Op
    exchange: bool


class Trees(NamedTuple):
    """By chunk and rank whom it sends its sum to and whom it has the total from, by chunk the root's partner, and the
    order of messages; all as the core takes them."""

    up: Ints
    down: Ints
    partner: Ints
    order: Ints

    @classmethod
    def of(cls, schedule: Schedule) -> Self:
        """The trees of a schedule; raises ValueError if its chunks are not summed and copied along some."""
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
    """The schedule with trees and order changed so that a call ends sooner, as far as the search times it right.

    Args:
      schedule: where the search starts.
      links: the times of its messages, each of a chunk.
      late: the late rank.
      delay: by how many seconds it is late; the others begin at once.
      tries: changes that are tried.
      seed: of the search; equal arguments give equal schedules.

    Raises:
      ValueError: its chunks are not summed along one tree each and copied along another.
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
    CPU.call(
        "improve_trees",
        *(ranks, chunks, int(links.link.max()) + 1, links.alpha),
        *(array.ctypes.data for array in network),
        *(tries, seed),
        *(array.ctypes.data for array in (*trees, *times)),
    )
    return _listed(_messages(trees, times), ranks, late, chunks)


def _messages(trees: Trees, times: Floats) -> list[TimedMessage]:
    """In the order in which they start."""
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
    """Each message in the first round in which its ports are free and what it sends is there."""
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
    """By rank, when its first message of the second phase starts. The late rank has no other, and a rank only begins
    the second phase when it is done with the first."""
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
