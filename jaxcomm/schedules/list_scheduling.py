"""Rounds for transfers of which only the importance is known: each starts as soon as data and ports are there.

What list scheduling finds is improved: the moves are scheduled from the end, which shows how late each may start, and
then once more from the beginning, those first that have to start first; and so on, as long as it ends sooner.

Source: Li and Willis, "An iterative scheduling technique for resource-constrained project scheduling" (1992).
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from typing import Final, NamedTuple

import numpy as np

from jaxcomm.schedules.schedule import Op, Table

MANY: Final = 2**13  # from so many moves on the schedule is improved only once

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

    Of the moves at a port, the one that starts first is in an earlier round, and so is whatever a move awaits.
    """
    return in_two_phases(moves, frozenset(), 0.0)[1]


def in_two_phases(moves: Sequence[PendingMove], late: Set[int], delay: float) -> tuple[Table, Table]:
    """The tables of what is done without the late ranks, and of the rest.

    A rank is in the first phase until it has something to do that waits for a late rank.

    Args:
      moves: in an order in which their values are right.
      late: ranks that come later than the others.
      delay: by how much; infinite if the others have by then done whatever they can.
    """
    starts, after = _starts(moves, late, delay)
    order = sorted(range(len(moves)), key=starts.__getitem__)
    waits_for_late, joined = [False] * len(moves), {*late}
    phases: tuple[list[PendingMove], list[PendingMove]] = ([], [])
    for index in order:
        move = moves[index]
        second = not late or waits_for_late[index] or move.src in joined or move.dst in joined
        if second:
            joined |= {move.src, move.dst}
            for other in after[index]:
                waits_for_late[other] = True
        phases[second].append(move)
    return _table(phases[0]), _table(phases[1])


def _table(moves: Iterable[PendingMove]) -> Table:
    """The table of moves that stand in the order in which their ports carry them."""
    used = defaultdict[Port, int](int)  # the first round in which a port is free
    written, read = (defaultdict[tuple[int, int], int](int) for _ in range(2))  # the first round after it
    table = []
    for _, src, dst, chunk, op, exchange, _, ports in moves:
        source, target = (src, chunk), (dst, chunk)
        round_ = max(written[source], written[target], read[target], *[used[port] for port in ports])
        if exchange:
            round_ = max(round_, read[source])
            read[target] = written[source] = round_ + 1
            table.append((round_, dst, src, chunk, op))
        for port in ports:
            used[port] = round_ + 1
        read[source] = max(read[source], round_ + 1)
        written[target] = round_ + 1
        table.append((round_, src, dst, chunk, op))
    return np.array(sorted(table), np.int32).reshape(-1, 5)


def _starts(moves: Sequence[PendingMove], late: Set[int], delay: float) -> tuple[list[float], list[list[int]]]:
    """When each move starts, and the moves that wait for it."""
    before, after = _awaited(moves)
    ports = _Ports(moves)
    late_moves = [index for index, move in enumerate(moves) if move.src in late or move.dst in late]
    starts, delay = ports.list_schedule([move.priority for move in moves], before, after, late_moves, delay)
    end = ports.end(starts)
    while True:
        # Backward, whatever ends last comes first, and a move waits for those that wait for it.
        reverse, _ = ports.list_schedule([-at for at in ports.ends(starts)], after, before, [], 0.0)
        latest = [-at for at in ports.ends(reverse)]
        again, _ = ports.list_schedule(latest, before, after, late_moves, delay)
        if ports.end(again) >= end:
            return starts, after
        starts, end = again, ports.end(again)
        if len(moves) >= MANY:
            return starts, after


def _awaited(moves: Sequence[PendingMove]) -> tuple[list[list[int]], list[list[int]]]:
    """The moves that each one waits for, and those that wait for it: whoever wrote what it reads or overwrites, and
    whoever reads what it overwrites. What one of these waits for itself is left out."""
    chunks = 1 + max((move.chunk for move in moves), default=0)
    written: defaultdict[int, list[int]] = defaultdict(list)  # since somebody last wrote alone
    read: defaultdict[int, list[int]] = defaultdict(list)
    awaited, after = [], [list[int]() for _ in moves]
    for index, (_, src, dst, chunk, op, exchange, _, _) in enumerate(moves):
        source, target = src * chunks + chunk, dst * chunks + chunk
        if exchange:
            before = {*written[source], *read[source], *written[target], *read[target]}
            written[source], read[source] = [index], [index]
            written[target], read[target] = [index], [index]
        elif op == Op.COPY:
            before = {*written[source], *written[target], *read[target]}
            read[source].append(index)
            written[target], read[target] = [index], []
        else:
            before = {*written[source], *read[target]}
            read[source].append(index)
            written[target].append(index)
        awaited.append(list(before))
        for other in before:
            after[other].append(index)
    return awaited, after


class _Ports:
    """The ports that moves need; moves that need the same ones wait in one queue."""

    def __init__(self, moves: Sequence[PendingMove]) -> None:
        numbers: dict[Port, int] = {}
        for move in moves:
            for port in move.ports:
                numbers.setdefault(port, len(numbers))
        keys = {ports: number for number, ports in enumerate(dict.fromkeys(move.ports for move in moves))}
        self._seconds = [move.seconds for move in moves]
        self._queue_of = [keys[move.ports] for move in moves]
        self._ports_of = [[numbers[port] for port in ports] for ports in keys]
        self._count = len(numbers)

    def ends(self, starts: Sequence[float]) -> list[float]:
        """When each move ends."""
        return [start + seconds for start, seconds in zip(starts, self._seconds, strict=True)]

    def end(self, starts: Sequence[float]) -> float:
        """When the last move ends."""
        return max(self.ends(starts), default=0.0)

    def list_schedule(
        self,
        priority: Sequence[float] | Sequence[tuple[float, int]],
        before: Sequence[Sequence[int]],
        after: Sequence[Sequence[int]],
        late_moves: Sequence[int],
        delay: float,
    ) -> tuple[list[float], float]:
        """When each move starts: at any time, of those that have what they await and find their ports free, the one of
        least priority does.

        The `late_moves` also await the `delay`; an infinite one ends when nothing else is left to do. Returns it,
        too.
        """
        seconds, queue_of, ports_of = self._seconds, self._queue_of, self._ports_of
        order = sorted(range(len(seconds)), key=priority.__getitem__)
        importance = [0] * len(order)
        for place, index in enumerate(order):
            importance[index] = place
        waits = [len(awaited) for awaited in before]
        for index in late_moves:
            waits[index] += 1
        ready = [index for index, count in enumerate(waits) if not count]
        queues: list[list[int]] = [[] for _ in ports_of]  # of moves that wait for their ports only, by importance
        waiting: list[list[int]] = [[] for _ in range(self._count)]  # queues by the busy port that they wait for
        is_waiting = [False] * len(queues)
        start, free = [0.0] * len(order), [0.0] * self._count
        arrival = len(order)
        ending: dict[float, list[int]] = {delay: [arrival]} if late_moves and delay < math.inf else {}
        times, now = list(ending), 0.0
        while True:
            looked_at = set[int]()
            for over in ending.pop(now, ()):
                if over < arrival:
                    for number in ports_of[queue_of[over]]:
                        for key in waiting[number]:
                            is_waiting[key] = False
                            looked_at.add(key)
                        waiting[number].clear()
                for index in after[over] if over < arrival else late_moves:
                    waits[index] -= 1
                    if not waits[index]:
                        ready.append(index)
            for index in ready:
                key = queue_of[index]
                heapq.heappush(queues[key], importance[index])
                if not is_waiting[key]:
                    looked_at.add(key)
            ready.clear()
            for first in sorted([queues[key][0] for key in looked_at]):
                index = order[first]
                key = queue_of[index]
                for busy in ports_of[key]:
                    if free[busy] > now:
                        break
                else:
                    heapq.heappop(queues[key])
                    start[index] = now
                    end = now + seconds[index]
                    for busy in ports_of[key]:
                        free[busy] = end
                    if end not in ending:
                        ending[end] = []
                        heapq.heappush(times, end)
                    ending[end].append(index)
                if queues[key]:
                    is_waiting[key] = True
                    waiting[busy].append(key)
            if not times and late_moves and delay == math.inf:
                delay = now
                ending[now] = [arrival]
            elif times:
                now = heapq.heappop(times)
            else:
                return start, delay
