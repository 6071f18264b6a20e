"""Finds rounds for transfers with priorities. Each transfer starts as soon as its data and its ports are available.

The core finds the rounds (see cc/search/list_scheduling.h), because a schedule of many hosts has hundreds of thousands
of transfers.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.ffi.arguments import IndexLists, MoveRounds, PendingMoves
from jaxcomm.ffi.cpu import CPU
from jaxcomm.schedules.ports import PortUse
from jaxcomm.schedules.schedule import Op, Table

_EXCHANGE: Final = 2  # the core's code for an exchange; all other codes are those of `Op`


class PendingMove(NamedTuple):
    """A transfer of a chunk. An exchange transfers the same chunk in both directions at once.

    If several moves can start, the move of least `priority` starts first. A move arrives after `seconds` and occupies
    `ports`.
    """

    priority: tuple[float, int]
    src: int
    dst: int
    chunk: int
    op: Op
    exchange: bool
    seconds: float
    ports: tuple[PortUse, ...]


def in_rounds(moves: Sequence[PendingMove]) -> Table:
    """Returns the table of the moves, each in the first round that fits.

    A move's round is later than the rounds of all moves that it waits for, and of all earlier moves on its ports.

    Args:
      moves: the moves, in an order that gives correct values.
    """
    return in_two_phases(moves, frozenset(), 0.0)[1]


def in_two_phases(moves: Sequence[PendingMove], late: Set[int], delay: float) -> tuple[Table, Table]:
    """Returns two tables: the moves before the late ranks' arrival, and all other moves.

    A rank stays in the first phase until one of its moves waits for a late rank.

    Args:
      moves: the moves, in an order that gives correct values.
      late: ranks that arrive later than the others.
      delay: the late ranks' lateness. If it is infinite, all moves that need no late rank precede the arrival.
    """
    rows = np.array([(move.src, move.dst, move.chunk, move.op, move.exchange) for move in moves], np.int64)
    src, dst, chunk, op, exchange = columns = rows.reshape(-1, 5).T.copy()
    ranks = 1 + max(int(columns[:2].max(initial=0)), *late, 0)
    chunks = 1 + int(chunk.max(initial=0))
    urgency = np.empty(len(moves), np.int64)
    times, steps = np.array([move.priority for move in moves], float).reshape(-1, 2).T
    urgency[np.lexsort((steps, times))] = np.arange(len(moves))
    routes = {ports: number for number, ports in enumerate(dict.fromkeys(move.ports for move in moves))}
    uses = [*chain.from_iterable(routes)]
    ports = {port: number for number, port in enumerate(dict.fromkeys(use.port for use in uses))}
    is_late = np.zeros(ranks, np.int64)
    is_late[sorted(late)] = 1
    round_, phase = np.empty((2, len(moves)), np.int64)
    by_move = (
        *(src, dst, chunk, np.where(exchange, _EXCHANGE, op)),
        np.array([move.seconds for move in moves], float),
        np.array([routes[move.ports] for move in moves], np.int64),
        urgency,
    )
    ports_of = np.cumsum([0, *map(len, routes)], dtype=np.int64), np.array([ports[use.port] for use in uses], np.int64)
    port_seconds = np.array([use.seconds for use in uses], float)
    pending = PendingMoves(
        *(len(moves), ranks, chunks, len(ports), len(routes)),
        *by_move,
        IndexLists(*ports_of),
        port_seconds,
    )
    CPU.call("find_rounds", pending, is_late.ctypes.data, delay, MoveRounds(round_, phase))
    table = np.stack([round_, src, dst, chunk, op], axis=1)
    back = exchange.astype(bool)
    table, phase = np.concatenate([table, table[back][:, [0, 2, 1, 3, 4]]]), np.concatenate([phase, phase[back]])
    before, after = (table[phase == number] for number in (0, 1))
    return _sorted(before), _sorted(after)


def _sorted(table: NDArray[np.int64]) -> Table:
    return table[np.lexsort(table.T[::-1])].astype(np.int32)
