"""Symbolic execution of transfers. A bit set represents a value: the ranks whose contributions the value contains."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxcomm.errors import PlanError
from jaxcomm.schedules import Op
from jaxcomm.schedules.schedule import CollectiveKind, Table, group_starts

CURE = "\n  Cure: do not run it; make the plan again with `jaxcomm plan`."
_WORD = 64
Cells = NDArray[np.int64]  # indices of values: rank · count + chunk - first


class Contributions:
    """The values that each rank holds of `count` chunks, from chunk `first` on.

    A value is either the set of ranks whose contributions were added up in it, each once, or garbage, which no transfer
    may read. Initially each value is the rank's own contribution. But in an all-gather, a rank initially holds only its
    own chunk, and its other chunks are garbage.
    """

    def __init__(
        self, name: str, ranks: int, count: int, first: int = 0, collective: CollectiveKind = "all_reduce"
    ) -> None:
        self._name, self._ranks, self._count, self._first, self._collective = name, ranks, count, first, collective
        self._full = self._set(range(ranks))
        self._held = np.zeros((ranks, count, len(self._full)), np.uint64)
        alone = np.eye(ranks, self._held.shape[2] * _WORD, dtype=np.uint8)
        self._held[:] = np.packbits(alone, axis=1, bitorder="little").view(np.uint64)[:, None]
        self._garbage = np.zeros((ranks, count), bool)
        self._nothing = "what a ReduceScatter left as garbage"
        if collective == "all_gather":
            self._nothing = "a chunk that has not arrived"
            self._garbage[:] = np.arange(ranks)[:, None] != first + np.arange(count)
        self._added = np.zeros((ranks, count), bool)  # whether another rank has added this value to its own
        self._last = np.zeros(ranks * count, np.int32)  # scratch memory: the last transfer of a round into each cell

    def reduce_scatter(self, late: int) -> None:
        """Applies a ReduceScatter of the N ranks other than `late`. Only the (c mod N)-th of them has chunk c's sum."""
        others = np.delete(np.arange(self._ranks), late)
        chunk = np.arange(self._count)
        owner = others[(chunk + self._first) % len(others)]
        self._held[owner, chunk] = self._set(others)
        self._garbage[others] = True
        self._garbage[owner, chunk] = False

    def forget_incomplete(self, late: Collection[int], chunks: NDArray[np.int_]) -> None:
        """Marks an incomplete value of these chunks as garbage if another rank has added this value to its own.

        A ReduceScatter may overwrite the memory of such values.
        """
        others = np.delete(np.arange(self._ranks), sorted(late))[:, None]
        chunk = chunks - self._first
        incomplete = (self._held[others, chunk] != self._set(others)).any(axis=2)
        self._garbage[others, chunk] = incomplete & self._added[others, chunk]

    def run(self, table: Table) -> None:
        """Executes the transfers, which must be sorted by round and within bounds.

        Raises:
          PlanError: a transfer reads garbage, adds a contribution a second time, or overwrites another transfer's value
            in the same round.
        """
        rounds, src, dst, chunk, op = table.T.astype(np.int64)
        chunk -= self._first
        src, dst, adds = src * self._count + chunk, dst * self._count + chunk, np.equal(op, Op.REDUCE)
        for first, end in pairwise((*group_starts(rounds), len(table))):
            self._round(table[first:end], src[first:end], dst[first:end], adds[first:end])

    def check_complete(self) -> None:
        """Raises PlanError unless every rank holds every chunk with the contribution of every rank.

        After a reduce-scatter only a rank's own chunk counts. After an all-gather chunk c must be the value that rank c
        had at the start.
        """
        expected = np.broadcast_to(self._full, self._held.shape)
        if self._collective == "all_gather":
            own = np.stack([self._set([self._first + chunk]) for chunk in range(self._count)])
            expected = np.broadcast_to(own, self._held.shape)
        wrong = (self._held != expected).any(axis=2)
        if self._collective == "reduce_scatter":
            wrong &= np.arange(self._ranks)[:, None] == self._first + np.arange(self._count)
        if wrong.any():
            rank, chunk = (int(i) for i in np.argwhere(wrong)[0])
            missing = self._members(expected[rank, chunk] & ~self._held[rank, chunk])
            problem = f"lacks the contribution of ranks {missing}" if missing else "is a sum, but must not be"
            raise PlanError(
                f"{self._name}: after the last round chunk {chunk + self._first} of rank {rank} {problem}.{CURE}"
            )

    def _round(self, transfers: Table, src: Cells, dst: Cells, adds: NDArray[np.bool_]) -> None:
        held = self._held.reshape(-1, len(self._full))
        garbage = self._garbage.reshape(-1)
        self._refuse(transfers, garbage[src], f"reads {self._nothing}")
        self._added.reshape(-1)[src[adds]] = True
        arriving = held.take(src, axis=0)
        position = np.arange(len(transfers), dtype=np.int32)
        self._last[dst] = position
        if not (self._last[dst] == position).all():
            chosen, arriving = self._gather(transfers, dst, adds, arriving)
            transfers, dst, adds = transfers[chosen], dst[chosen], adds[chosen]

        self._refuse(transfers, adds & garbage[dst], f"adds to {self._nothing}")
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
        """The first transfer into each written cell, and the union of contributions of all transfers into that cell."""
        order = np.argsort(dst, kind="stable")
        transfers, arriving = transfers[order], arriving[order]
        starts = group_starts(dst[order])
        number = np.diff(starts, append=len(dst))
        alone = np.repeat(number == 1, number)
        self._refuse(transfers, ~alone & ~adds[order], "is not the only transfer into this chunk in its round")
        sizes = np.add.reduceat(np.bitwise_count(arriving).sum(axis=1, dtype=np.int64), starts)
        union = np.bitwise_or.reduceat(arriving, starts, axis=0)
        twice = np.bitwise_count(union).sum(axis=1, dtype=np.int64) != sizes
        self._refuse(transfers[starts], twice, "brings a contribution that another transfer of its round also brings")
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
