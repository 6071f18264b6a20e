"""Symbolic execution of transfers: whose contributions the value of every rank holds, as sets of bits."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxcomm.errors import PlanError
from jaxcomm.schedules import Op
from jaxcomm.schedules.schedule import Table, group_starts

CURE = "\n  Cure: do not run it; make the plan again with `jaxcomm plan`."
_WORD = 64
Cells = NDArray[np.int64]  # rank · count + chunk - first


class Contributions:
    """What every rank holds of the chunks `first`, `first + 1`, ...; at first its own contribution.

    A value is the set of ranks whose contributions were added up in it, each of them once, or garbage, which nobody may
    read.
    """

    def __init__(self, name: str, ranks: int, count: int, first: int = 0) -> None:
        self._name, self._ranks, self._count, self._first = name, ranks, count, first
        self._full = self._set(range(ranks))
        self._held = np.zeros((ranks, count, len(self._full)), np.uint64)
        alone = np.eye(ranks, self._held.shape[2] * _WORD, dtype=np.uint8)
        self._held[:] = np.packbits(alone, axis=1, bitorder="little").view(np.uint64)[:, None]
        self._garbage = np.zeros((ranks, count), bool)
        self._added = np.zeros((ranks, count), bool)  # whether somebody has added this value to its own
        self._last = np.zeros(ranks * count, np.int32)  # scratch: the last transfer of a round into each cell

    def reduce_scatter(self, late: int) -> None:
        """Does what a ReduceScatter of the others does: chunk c is complete on the (c mod N)-th of them only."""
        others = np.delete(np.arange(self._ranks), late)
        chunk = np.arange(self._count)
        owner = others[(chunk + self._first) % len(others)]
        self._held[owner, chunk] = self._set(others)
        self._garbage[others] = True
        self._garbage[owner, chunk] = False

    def forget_incomplete(self, late: Collection[int], chunks: NDArray[np.int_]) -> None:
        """Makes garbage of what a precondition leaves of these chunks on ranks that have sent it on to be added up.

        A ReduceScatter may use their memory as it likes.
        """
        others = np.delete(np.arange(self._ranks), sorted(late))[:, None]
        chunk = chunks - self._first
        incomplete = (self._held[others, chunk] != self._set(others)).any(axis=2)
        self._garbage[others, chunk] = incomplete & self._added[others, chunk]

    def run(self, table: Table) -> None:
        """Executes the transfers, which must be sorted by round and within bounds.

        Raises:
          PlanError: a transfer reads garbage, adds a contribution a second time, or overwrites another of its round.
        """
        rounds, src, dst, chunk, op = table.T.astype(np.int64)
        chunk -= self._first
        src, dst, adds = src * self._count + chunk, dst * self._count + chunk, np.equal(op, Op.REDUCE)
        for first, end in pairwise((*group_starts(rounds), len(table))):
            self._round(table[first:end], src[first:end], dst[first:end], adds[first:end])

    def check_complete(self) -> None:
        """Raises PlanError unless every rank holds every chunk with the contribution of every rank."""
        incomplete = (self._held != self._full).any(axis=2)
        if incomplete.any():
            rank, chunk = (int(i) for i in np.argwhere(incomplete)[0])
            missing = self._members(self._full & ~self._held[rank, chunk])
            raise PlanError(
                f"{self._name}: after the last round chunk {chunk + self._first} of rank {rank} lacks the "
                f"contribution of ranks {missing}.{CURE}"
            )

    def _round(self, transfers: Table, src: Cells, dst: Cells, adds: NDArray[np.bool_]) -> None:
        held = self._held.reshape(-1, len(self._full))
        garbage = self._garbage.reshape(-1)
        self._refuse(transfers, garbage[src], "reads what a ReduceScatter left as garbage")
        self._added.reshape(-1)[src[adds]] = True
        arriving = held.take(src, axis=0)
        position = np.arange(len(transfers), dtype=np.int32)
        self._last[dst] = position
        if not (self._last[dst] == position).all():
            chosen, arriving = self._gather(transfers, dst, adds, arriving)
            transfers, dst, adds = transfers[chosen], dst[chosen], adds[chosen]

        self._refuse(transfers, adds & garbage[dst], "adds to what a ReduceScatter left as garbage")
        before = held.take(dst, axis=0)
        before[~adds] = 0
        again = before & arriving
        if again.any():
            bad = np.asarray(again.any(axis=1))
            ranks = self._members(again[bad.argmax()])
            self._refuse(transfers, bad, f"adds the contribution of ranks {ranks} a second time")
        held[dst] = before | arriving
        garbage[dst] = False

    def _gather(
        self, transfers: Table, dst: Cells, adds: NDArray[np.bool_], arriving: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int_], NDArray[np.uint64]]:
        """The first transfer into each cell that is written, and the union of what all transfers into it bring."""
        order = np.argsort(dst, kind="stable")
        transfers, arriving = transfers[order], arriving[order]
        starts = group_starts(dst[order])
        number = np.diff(starts, append=len(dst))
        alone = np.repeat(number == 1, number)
        self._refuse(transfers, ~alone & ~adds[order], "is not the only one into this chunk in its round")
        sizes = np.add.reduceat(np.bitwise_count(arriving).sum(axis=1, dtype=np.int64), starts)
        union = np.bitwise_or.reduceat(arriving, starts, axis=0)
        twice = np.bitwise_count(union).sum(axis=1, dtype=np.int64) != sizes
        self._refuse(transfers[starts], twice, "brings what another one of its round brings, too")
        return order[starts], union

    def _refuse(self, transfers: Table, bad: NDArray[np.bool_], problem: str) -> None:
        if bad.any():
            refuse(self._name, transfers[bad.argmax()], problem)

    def _set(self, ranks: ArrayLike) -> NDArray[np.uint64]:
        bits = np.zeros(-(-self._ranks // _WORD) * _WORD, np.uint8)
        bits[np.asarray(ranks)] = 1
        return np.packbits(bits, bitorder="little").view(np.uint64)

    def _members(self, value: NDArray[np.uint64]) -> list[int]:
        return np.flatnonzero(np.unpackbits(value.view(np.uint8), bitorder="little")).tolist()


def refuse(name: str, transfer: NDArray[np.int32], problem: str) -> NoReturn:
    """Raises the PlanError about one transfer."""
    round_, src, dst, chunk, op = transfer.tolist()
    verb = {int(Op.REDUCE): "reduce", int(Op.COPY): "copy"}.get(op, f"op {op}")
    raise PlanError(
        f"{name}: round {round_}: the {verb} of chunk {chunk} from rank {src} to rank {dst} {problem}.{CURE}"
    )
