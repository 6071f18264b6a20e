"""The rounds of permutes as steps. Each step has columns of a table that say where each rank reads and stores.

A rank's buffer stays flat and in place. Where chunks differ in length, each chunk moves in a row of the longest
chunk's length, and only the chunk's own part of the row is stored.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.program.messages import BUFFER
from jaxcomm.program.permutes import ADD, NOTHING, Additions, Loop, Permute
from jaxcomm.schedules.schedule import ALIGNMENT

UNROLLED: Final = 8  # up to 8 chunks of a message, or operands of a sum, are traced one by one, without a loop


class Cuts(NamedTuple):
    """The chunks of a flat buffer.

    Chunk i has the elements `[starts[i] + begins[i], starts[i] + ends[i])`. A row for chunk i is the `width` elements
    from `starts[i]` on.
    """

    width: int
    starts: NDArray[np.int32]
    begins: NDArray[np.int32]
    ends: NDArray[np.int32]

    @classmethod
    def at(cls, bounds: NDArray[np.int64]) -> Cuts:
        """Chunks between consecutive bounds; the last bound is the buffer's size."""
        lengths = np.diff(bounds)
        width = int(lengths.max())
        starts = np.minimum(bounds[:-1], bounds[-1] - width)
        begins = bounds[:-1] - starts
        return cls(width, *(each.astype(np.int32) for each in (starts, begins, begins + lengths)))


def in_lines(size: int, itemsize: int, chunks: int) -> Cuts:
    """The core's chunks: their bounds are multiples of 64 bytes.

    Args:
      size: the number of elements in the buffer, at least 1.
      itemsize: bytes of an element.
      chunks: the number of chunks.
    """
    lines = -(-size * itemsize // ALIGNMENT)
    line = -(-lines * np.arange(chunks + 1, dtype=np.int64) // chunks)
    return Cuts.at(np.minimum(line * (ALIGNMENT // itemsize), size))


class Store(NamedTuple):
    """The places where a step stores rows.

    `starts`, `begins` and `ends` are the first of the table columns that hold these fields of `Cuts` for each row. A
    row is added to the old row if its flag is set, and replaces the old row otherwise: `adds` is one flag for all
    rows, or the first of the table columns that hold one flag per row.
    """

    starts: int
    begins: int
    ends: int
    is_whole: bool  # whether every rank stores the whole row
    adds: int | bool


class PermuteStep(NamedTuple):
    """A collective-permute: its pairs, and where this rank reads and stores."""

    pairs: tuple[tuple[int, int], ...]
    chunks: int  # the number of chunks that a rank sends
    sends: int  # the first column of the sent chunks' `starts`
    buffer: Store | None
    slots: Store | None


class Operand(NamedTuple):
    """The first table columns of operands' start positions: `own` in the buffer, `other` in the slots.

    A column holds where each rank's operand starts. If an operand may be in either place, flags select the buffer;
    the flags' first table column is `is_own`.
    """

    own: int | None
    other: int | None
    is_own: int


class SumStep(NamedTuple):
    """A step that stores `chunks` sums in the buffer. Each sum has `terms` operands."""

    chunks: int
    operands: list[Operand]  # one Operand for each term, or a single Operand whose columns hold all terms
    terms: int
    buffer: Store


class OwnColumns(NamedTuple):
    """A step and its own columns of the table, [first, end). The step counts its columns from 0."""

    first: int
    end: int
    step: PermuteStep | SumStep


class _Columns:
    """A table with a row per rank, and a row of zeros for devices in no group."""

    def __init__(self) -> None:
        self._parts: list[NDArray[np.int32]] = []
        self._next = self._first = 0

    def add(self, numbers: NDArray[Any]) -> int:
        """Adds m columns of numbers, [iterations, ranks, m]. Returns the first one's index within the step."""
        first, self._next = self._next, self._next + numbers.shape[2]
        self._parts.append(numbers.astype(np.int32))
        return first - self._first

    def own(self, step: PermuteStep | SumStep) -> OwnColumns:
        """The step with the columns that were added for it."""
        first, self._first = self._first, self._next
        return OwnColumns(first, self._next, step)

    def table(self) -> NDArray[np.int32]:
        """The table: [ranks + 1, iterations, columns]."""
        table = np.concatenate(self._parts, axis=2).transpose(1, 0, 2)
        return np.concatenate([table, np.zeros_like(table[:1])])


def compile_loop(loop: Loop, cuts: Cuts) -> tuple[NDArray[np.int32], list[list[OwnColumns]]]:
    """The table of a loop, and the loop's rounds as steps with their own columns of the table."""
    columns = _Columns()
    rounds: list[list[OwnColumns]] = []
    for round_ in loop.rounds:
        rounds.append([columns.own(_permute_step(columns, permute, cuts)) for permute in round_.permutes])
        rounds[-1] += [columns.own(_sum_step(columns, additions, cuts)) for additions in round_.additions]
    return columns.table(), rounds


def _permute_step(columns: _Columns, permute: Permute, cuts: Cuts) -> PermuteStep:
    chunks, places = permute.chunks, permute.places
    stored = (chunks != NOTHING) & ((places == BUFFER) | (places == ADD))
    aside = (chunks != NOTHING) & (places > BUFFER)
    sends = columns.add(np.where(permute.sends == NOTHING, 0, cuts.starts[permute.sends]))
    buffer = _buffer_store(columns, np.where(stored, chunks, NOTHING), cuts, places == ADD) if stored.any() else None
    slots = None
    if aside.any():
        starts, ends = columns.add(_slot_starts(places, aside, cuts)), columns.add(np.where(aside, cuts.width, 0))
        slots = Store(starts, columns.add(np.zeros_like(places)), ends, bool(aside.all()), False)
    return PermuteStep(permute.pairs, permute.sends.shape[2], sends, buffer, slots)


def _sum_step(columns: _Columns, additions: Additions, cuts: Cuts) -> SumStep:
    chunks, places = additions
    if places.shape[3] == 2:
        places = np.sort(places, axis=3)  # a sum of two operands has the same bits in either order
    active = chunks != NOTHING
    starts = np.where(active, cuts.starts[chunks], 0)
    count = places.shape[3]
    buffer = _buffer_store(columns, chunks, cuts, np.zeros_like(active))
    if count > UNROLLED:
        every = places.reshape(*places.shape[:2], -1)
        is_active = np.repeat(active, count, axis=2)
        operand = Operand(
            columns.add(np.repeat(starts, count, axis=2)),
            columns.add(_slot_starts(every, is_active & (every != BUFFER), cuts)),
            columns.add(every == BUFFER),
        )
        return SumStep(chunks.shape[2], [operand], count, buffer)
    operands = []
    for each in np.moveaxis(places, 3, 0):
        own, other = (each == BUFFER), (each != BUFFER)
        has_own, has_other = bool((own & active).any()), bool((other & active).any())
        from_buffer = columns.add(starts) if has_own else None
        from_slots = columns.add(_slot_starts(each, other & active, cuts)) if has_other else None
        operands.append(Operand(from_buffer, from_slots, columns.add(own) if has_own and has_other else -1))
    return SumStep(chunks.shape[2], operands, count, buffer)


def _buffer_store(columns: _Columns, chunks: NDArray[np.int32], cuts: Cuts, adds: NDArray[np.bool_]) -> Store:
    active = chunks != NOTHING
    starts, begins, ends = (np.where(active, numbers[chunks], 0) for numbers in cuts[1:])
    whole = bool(((begins == 0) & (ends == cuts.width)).all())
    flag: int | bool = bool(adds[active].any())
    if flag and not adds[active].all():
        flag = columns.add(adds)
    return Store(columns.add(starts), columns.add(begins), columns.add(ends), whole, flag)


def _slot_starts(places: NDArray[np.int32], active: NDArray[np.bool_], cuts: Cuts) -> NDArray[Any]:
    return np.where(active, (places - 1) * cuts.width, 0)
