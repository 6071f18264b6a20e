"""Rounds for transfers of which only the importance is known: each starts as soon as data and ports are there."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxcomm.schedules.schedule import Op, Table

Port = tuple[str, int]


class PendingMove(NamedTuple):
    """A chunk on its way, or, of an exchange, the same chunk in both directions at once.

    Of moves that could start, the one of least `priority` does; it takes `seconds` of its `ports`.
    """

    priority: tuple[float, int]
    src: int
    dst: int
    chunk: int
    op: Op
    exchange: bool
    seconds: float
    ports: tuple[Port, ...]


def in_rounds(moves: Sequence[PendingMove]) -> Table:
    """The table of moves that stand in an order in which their values are right, each in the first round that fits.

    They are timed by list scheduling: at any time, of those that have what they read and find their ports free, the
    most important starts. A port then keeps that order, and a move's round follows those of what it awaits.
    """
    starts = _starts(moves)
    used: defaultdict[Port, int] = defaultdict(lambda: -1)
    written, read = (defaultdict[tuple[int, int], int](lambda: -1) for _ in range(2))
    table = []
    for index in sorted(range(len(moves)), key=starts.__getitem__):
        move = moves[index]
        src, dst = (move.src, move.chunk), (move.dst, move.chunk)
        values = (written[src], written[dst], read[dst], read[src] if move.exchange else -1)
        round_ = 1 + max(*values, *map(used.__getitem__, move.ports))
        for port in move.ports:
            used[port] = round_
        read[src], written[dst] = max(read[src], round_), round_
        if move.exchange:
            read[dst], written[src] = max(read[dst], round_), round_
        table.append((round_, move.src, move.dst, move.chunk, move.op))
        if move.exchange:
            table.append((round_, move.dst, move.src, move.chunk, move.op))
    return np.array(sorted(table), np.int32).reshape(-1, 5)


def _starts(moves: Sequence[PendingMove]) -> list[float]:
    """When each move starts; moves that need the same ports wait in one queue, numbered as those appear."""
    waits, after = _awaited(moves)
    order = sorted(range(len(moves)), key=lambda index: moves[index].priority)
    importance = [0] * len(moves)
    for place, index in enumerate(order):
        importance[index] = place
    numbers: dict[Port, int] = {}
    for move in moves:
        for port in move.ports:
            numbers.setdefault(port, len(numbers))
    keys = {ports: number for number, ports in enumerate(dict.fromkeys(move.ports for move in moves))}
    queue_of, ports_of = [keys[move.ports] for move in moves], [[numbers[port] for port in ports] for ports in keys]
    sharing: list[list[int]] = [[] for _ in numbers]
    for key, ports in enumerate(ports_of):
        for number in {*ports}:
            sharing[number].append(key)
    queues: list[list[int]] = [[] for _ in keys]  # of moves that wait for their ports only, by importance
    start, free = [0.0] * len(moves), [0.0] * len(numbers)
    ends: list[tuple[float, int]] = []
    now, ready, freed = 0.0, [index for index, count in enumerate(waits) if not count], set[int]()
    while ready or freed or ends:
        looked_at = {key for port in freed for key in sharing[port] if queues[key]}
        for index in ready:
            heapq.heappush(queues[queue_of[index]], importance[index])
            looked_at.add(queue_of[index])
        for first, key in sorted([(queues[key][0], key) for key in looked_at]):
            if max([free[number] for number in ports_of[key]]) <= now:
                heapq.heappop(queues[key])
                index = order[first]
                start[index] = now
                end = now + moves[index].seconds
                for number in ports_of[key]:
                    free[number] = end
                heapq.heappush(ends, (end, index))
        ready, freed = [], set()
        if ends:
            now = ends[0][0]
        while ends and ends[0][0] <= now:
            _, over = heapq.heappop(ends)
            freed.update(ports_of[queue_of[over]])
            for index in after[over]:
                waits[index] -= 1
                if not waits[index]:
                    ready.append(index)
    return start


def _awaited(moves: Sequence[PendingMove]) -> tuple[list[int], list[list[int]]]:
    """How many moves each one waits for, and those that wait for it: whoever wrote what it reads or overwrites, and
    whoever reads what it overwrites."""
    written: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    read: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    waits, after = [], [list[int]() for _ in moves]
    for index, move in enumerate(moves):
        src, dst = (move.src, move.chunk), (move.dst, move.chunk)
        before = {*written[src], *read[dst]}
        if move.exchange or move.op == Op.COPY:
            before |= {*written[dst]}
        if move.exchange:
            before |= {*read[src]}
        waits.append(len(before))
        for other in before:
            after[other].append(index)
        read[src].append(index)
        written[dst].append(index)
        if move.exchange:
            read[dst].append(index)
            written[src].append(index)
    return waits, after
