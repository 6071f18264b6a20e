"""Checks a schedule's table of transfers before it is executed: indices, order, ports, rounds and volume."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jaxcomm.errors import PlanError
from jaxcomm.program.contributions import CURE, refuse
from jaxcomm.schedules import Op, Schedule
from jaxcomm.schedules.schedule import Table, loads, measure


def checked_table(schedule: Schedule) -> Table:
    """Checks the schedule's transfers (their indices, order, ports, rounds and volume), and returns them."""
    kind, ranks, table = schedule.kind, schedule.ranks, schedule.table()
    if table.ndim != 2 or table.shape[1] != 5 or table.dtype != np.int32:
        raise PlanError(f"{kind}: its table is {table.dtype}{table.shape}; it must be int32 [transfers, 5].{CURE}")
    round_, src, dst, chunk, op = table.T
    _refuse_first(kind, table, (round_ < 0) | (np.diff(round_, prepend=0) < 0), "is not in the order of rounds")
    _refuse_first(kind, table, (src < 0) | (src >= ranks), f"does not come from one of {ranks} ranks")
    _refuse_first(
        kind, table, (dst < 0) | (dst >= ranks) | (dst == src), f"does not go to one of {ranks - 1} other ranks"
    )
    _refuse_first(
        kind, table, (chunk < 0) | (chunk >= schedule.num_chunks), f"is not one of {schedule.num_chunks} chunks"
    )
    _refuse_first(kind, table, (op != Op.REDUCE) & (op != Op.COPY), "is neither reduce nor copy")
    if (schedule.num_rounds, schedule.volume) != (measured := check_ports(kind, table, schedule.ports)):
        raise PlanError(
            f"{kind}: it declares {schedule.num_rounds} rounds and a volume of {schedule.volume} chunks; "
            f"its transfers take {measured[0]} and {measured[1]}.{CURE}"
        )
    return table


def checked_precondition(before: Schedule, after: Schedule) -> Table:
    """Checks the transfers of `before`, the phase before `after`, and returns them.

    The two phases must have the same ranks and chunks and matching late ranks, and `before` must not involve the late
    ranks of `after`.
    """
    fits = after.late_ranks <= before.late_ranks if before.precondition else after.late_ranks == before.late_ranks
    if (before.ranks, before.num_chunks) != (after.ranks, after.num_chunks) or not after.late_ranks or not fits:
        raise PlanError(f"{after.kind}: its precondition is for other ranks, chunks or late ranks.{CURE}")
    table = checked_table(before)
    involved = np.asarray(np.isin(table[:, 1:3], sorted(after.late_ranks)).any(axis=1))
    _refuse_first(
        before.kind, table, involved, "involves the late rank" if len(after.late_ranks) == 1 else "involves a late rank"
    )
    return table


def check_ports(kind: str, table: Table, ports: int) -> tuple[int, int]:
    """Returns the number of rounds and the volume. Checks that no rank needs more than `ports` ports."""
    directions = loads(table)
    for (round_, rank, peers, _), verb in zip(directions, ("sends to", "receives from"), strict=True):
        if len(peers) and peers.max() > ports:
            worst = peers.argmax()
            raise PlanError(
                f"{kind}: round {round_[worst]}: rank {rank[worst]} {verb} {peers[worst]} ranks; "
                f"it has {ports} {'port' if ports == 1 else 'ports'}.{CURE}"
            )
    return measure(*directions)


def _refuse_first(kind: str, table: Table, bad: NDArray[np.bool_], problem: str) -> None:
    if bad.any():
        refuse(kind, table[bad.argmax()], problem)
