"""Symbolic execution of transfers: whose contributions the value of every rank holds, as sets of bits."""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxcomm.errors import PlanError
from jaxcomm.schedules import Op
from jaxcomm.schedules.schedule import Table

CURE = "\n  Cure: do not run it; make the plan again with `jaxcomm plan`."
_WORD = 64


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
        self._last = np.zeros((ranks, count), np.int32)  # scratch: the last transfer of a round into each chunk

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
        starts = np.flatnonzero(np.diff(table[:, 0], prepend=-1))
        for transfers in np.split(table, starts[1:]):
            self._round(transfers)

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

    def _round(self, transfers: Table) -> None:
        _, src, dst, chunk, op = transfers.T
        chunk = chunk - self._first
        self._refuse(transfers, self._garbage[src, chunk], "reads what a ReduceScatter left as garbage")
        adds = op == Op.REDUCE
        self._added[src[adds], chunk[adds]] = True
        arriving = self._held[src, chunk]
        position = np.arange(len(transfers), dtype=np.int32)
        self._last[dst, chunk] = position
        last = self._last[dst, chunk] == position
        if not last.all():
            transfers, arriving = self._gather(transfers, arriving)
            _, src, dst, chunk, op = transfers.T
            chunk = chunk - self._first

        copy = op == Op.COPY
        self._refuse(transfers, self._garbage[dst, chunk] & ~copy, "adds to what a ReduceScatter left as garbage")
        held = self._held[dst, chunk]
        held[copy] = 0
        again = held & arriving
        if again.any():
            bad = again.any(axis=1)
            ranks = self._members(again[bad.argmax()])
            self._refuse(transfers, bad, f"adds the contribution of ranks {ranks} a second time")
        self._held[dst, chunk] = held | arriving
        self._garbage[dst, chunk] = False

    def _gather(self, transfers: Table, arriving: NDArray[np.uint64]) -> tuple[Table, NDArray[np.uint64]]:
        """One transfer for each chunk that is written, and the union of what all transfers into it bring."""
        cell = transfers[:, 2].astype(np.int64) * self._count + transfers[:, 3]
        order = np.argsort(cell, kind="stable")
        transfers, arriving = transfers[order], arriving[order]
        starts = np.flatnonzero(np.diff(cell[order], prepend=-1))
        number = np.diff(starts, append=len(cell))
        alone = np.repeat(number == 1, number)
        self._refuse(
            transfers, ~alone & (transfers[:, 4] == Op.COPY), "is not the only one into this chunk in its round"
        )
        sizes = np.add.reduceat(np.bitwise_count(arriving).sum(axis=1, dtype=np.int64), starts)
        union = np.bitwise_or.reduceat(arriving, starts, axis=0)
        twice = np.bitwise_count(union).sum(axis=1, dtype=np.int64) != sizes
        self._refuse(transfers[starts], twice, "brings what another one of its round brings, too")
        return transfers[starts], union

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
