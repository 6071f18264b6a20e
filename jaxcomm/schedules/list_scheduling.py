"""Rounds for transfers of which only the importance is known: each starts as soon as data and ports are there.

The core finds them (cc/search/list_scheduling.h says how), as a schedule of many hosts has hundred thousands.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.ffi.cpu import CPU
from jaxcomm.schedules.ports import PortUse
from jaxcomm.schedules.schedule import Op, Table

_EXCHANGE: Final = 2  # for the core, beside the numbers of Op


class PendingMove(NamedTuple):
    """A chunk on its way, or, of an exchange, the same chunk in both directions at once.

    Of moves that could start, the one of least `priority` does; it arrives after `seconds`, and takes its `ports`.
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
    """The table of moves that stand in an order in which their values are right, each in the first round that fits.

    Of the moves at a port, the one that it carries first is in an earlier round, and so is whatever a move awaits.
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
    arrays = (
        *(src, dst, chunk, np.where(exchange, _EXCHANGE, op)),
        np.array([move.seconds for move in moves], float),
        np.array([routes[move.ports] for move in moves], np.int64),
        urgency,
        np.cumsum([0, *map(len, routes)], dtype=np.int64),
        np.array([ports[use.port] for use in uses], np.int64),
        np.array([use.seconds for use in uses], float),
        is_late,
    )
    sizes = len(moves), ranks, chunks, len(ports), len(routes)
    addresses = (array.ctypes.data for array in arrays)
    CPU.call("find_rounds", *sizes, *addresses, delay, round_.ctypes.data, phase.ctypes.data)
    table = np.stack([round_, src, dst, chunk, op], axis=1)
    back = exchange.astype(bool)
    table, phase = np.concatenate([table, table[back][:, [0, 2, 1, 3, 4]]]), np.concatenate([phase, phase[back]])
    before, after = (table[phase == number] for number in (0, 1))
    return _sorted(before), _sorted(after)


def _sorted(table: NDArray[np.int64]) -> Table:
    return table[np.lexsort(table.T[::-1])].astype(np.int32)
