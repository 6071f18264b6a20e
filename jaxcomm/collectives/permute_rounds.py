"""The rounds of a schedule as JAX traces them: collective-permutes, sums, and a table row that serves this rank.

A rank's buffer stays flat and in place. Where chunks differ in length, a row as long as the longest is moved, and of
it only the chunk's own part is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from jaxcomm.program.messages import BUFFER
from jaxcomm.program.permutes import ADD, NOTHING, Additions, Loop, Permute, Permutes
from jaxcomm.schedules.schedule import ALIGNMENT

Combine = Callable[[Any, Any], Any]
_UNROLLED: Final = 8  # chunks of a message or a sum that are handled one by one, without a loop
_IN_FLIGHT: Final = 8  # permutes wait for those before when these have more than this part of the buffer on their way


class Cuts(NamedTuple):
    """The chunks of a flat buffer: `[starts + begins, starts + ends)`, all within rows of `width` elements."""

    width: int
    starts: NDArray[np.int32]
    begins: NDArray[np.int32]
    ends: NDArray[np.int32]

    @classmethod
    def at(cls, bounds: NDArray[np.int64]) -> Cuts:
        """Chunks between bounds, of which the last is the buffer's size."""
        lengths = np.diff(bounds)
        width = int(lengths.max())
        starts = np.minimum(bounds[:-1], bounds[-1] - width)
        begins = bounds[:-1] - starts
        return cls(width, *(each.astype(np.int32) for each in (starts, begins, begins + lengths)))


def in_lines(size: int, itemsize: int, chunks: int) -> Cuts:
    """The chunks of the core: their bounds are multiples of 64 bytes.

    Args:
      size: elements of the buffer, at least 1.
      itemsize: bytes of an element.
      chunks: how many.
    """
    lines = -(-size * itemsize // ALIGNMENT)
    line = -(-lines * np.arange(chunks + 1, dtype=np.int64) // chunks)
    return Cuts.at(np.minimum(line * (ALIGNMENT // itemsize), size))


class Ranks(NamedTuple):
    """The devices that run permutes.

    Attributes:
      axes: the mesh's axes, whose indices count the devices.
      groups: the device of each rank, of groups that all run the same permutes.
      devices: how many there are along the axes; those in no group do nothing.
    """

    axes: tuple[Any, ...]
    groups: Sequence[Sequence[int]]
    devices: int

    def row(self) -> Any:
        """This device's rank in its group, or the number of ranks if it is in none."""
        ranks = np.full(self.devices, len(self.groups[0]), np.int32)
        for group in self.groups:
            ranks[list(group)] = np.arange(len(group))
        index = lax.axis_index(self.axes)
        if (ranks == np.arange(self.devices)).all():
            return index
        return _entry(jnp.asarray(ranks), index)


def run(permutes: Permutes, flat: Any, cuts: Cuts, ranks: Ranks, combine: Combine) -> Any:
    """Runs all rounds on a flat buffer, and returns it.

    Args:
      permutes: the program.
      flat: the rank's own contribution, [size].
      cuts: the chunks of it.
      ranks: the devices.
      combine: the sum, maximum or minimum of two arrays.
    """
    row = ranks.row()
    slots = jnp.broadcast_to(flat[:1], permutes.slots * cuts.width)  # of any content; varies over axes as `flat` does
    trace = _Trace(cuts.width, permutes.chunks, ranks, combine)
    for loop in permutes.loops:
        table, steps = _compile(loop, permutes.ranks, cuts)
        mine = _entry(jnp.asarray(table), row)

        def body(i: Any, buffers: Any, mine: Any = mine, steps: Any = steps) -> Any:
            now = _entry(mine, i)
            for round_ in steps:
                buffers = trace.round(round_, now, buffers)
            return buffers

        buffers = flat, slots
        flat, slots = lax.fori_loop(0, loop.iterations, body, buffers) if loop.iterations > 1 else body(0, buffers)
    return flat


class _Store(NamedTuple):
    """Rows that are stored: the first columns of where they start and of which part; `adds`: that of a flag."""

    starts: int
    begins: int
    ends: int
    is_whole: bool  # on every rank, so that no part of it is left out
    adds: int | bool


class _PermuteStep(NamedTuple):
    pairs: tuple[tuple[int, int], ...]
    chunks: int  # that a rank sends
    sends: int  # the first column of where these start
    buffer: _Store | None
    slots: _Store | None


class _SumStep(NamedTuple):
    chunks: int
    operands: list[tuple[int | None, int | None, int]]  # columns: starts in the buffer, in the slots, and which of them
    buffer: _Store


class _Columns:
    """A table with a row per rank, and one of zeros for devices in no group."""

    def __init__(self, iterations: int, ranks: int) -> None:
        self._parts: list[NDArray[np.int32]] = []
        self._shape = iterations, ranks
        self._next = 0

    def add(self, numbers: NDArray[Any]) -> int:
        """Adds numbers, [iterations, ranks, m], and returns their first column."""
        first, self._next = self._next, self._next + numbers.shape[2]
        self._parts.append(numbers.astype(np.int32))
        return first

    def table(self) -> NDArray[np.int32]:
        """[ranks + 1, iterations, columns]."""
        table = np.concatenate(self._parts, axis=2).transpose(1, 0, 2)
        return np.concatenate([table, np.zeros_like(table[:1])])


def _compile(loop: Loop, ranks: int, cuts: Cuts) -> tuple[NDArray[np.int32], list[list[_PermuteStep | _SumStep]]]:
    """The table of a loop, and its rounds as steps that know their columns of it."""
    columns = _Columns(loop.iterations, ranks)
    rounds: list[list[_PermuteStep | _SumStep]] = []
    for round_ in loop.rounds:
        rounds.append([_permute_step(columns, permute, cuts) for permute in round_.permutes])
        rounds[-1] += [_sum_step(columns, additions, cuts) for additions in round_.additions]
    return columns.table(), rounds


def _permute_step(columns: _Columns, permute: Permute, cuts: Cuts) -> _PermuteStep:
    chunks, places = permute.chunks, permute.places
    stored = (chunks != NOTHING) & ((places == BUFFER) | (places == ADD))
    aside = (chunks != NOTHING) & (places > BUFFER)
    sends = columns.add(np.where(permute.sends == NOTHING, 0, cuts.starts[permute.sends]))
    buffer = _buffer_store(columns, np.where(stored, chunks, NOTHING), cuts, places == ADD) if stored.any() else None
    slots = None
    if aside.any():
        starts, ends = columns.add(_slot_starts(places, aside, cuts)), columns.add(np.where(aside, cuts.width, 0))
        slots = _Store(starts, columns.add(np.zeros_like(places)), ends, bool(aside.all()), False)
    return _PermuteStep(permute.pairs, permute.sends.shape[2], sends, buffer, slots)


def _sum_step(columns: _Columns, additions: Additions, cuts: Cuts) -> _SumStep:
    chunks, places = additions
    if places.shape[3] == 2:
        places = np.sort(places, axis=3)  # in either order a sum of two has the same bits
    active = chunks != NOTHING
    starts = np.where(active, cuts.starts[chunks], 0)
    operands: list[tuple[int | None, int | None, int]] = []
    for each in np.moveaxis(places, 3, 0):
        own, other = (each == BUFFER), (each != BUFFER)
        has_own, has_other = bool((own & active).any()), bool((other & active).any())
        from_buffer = columns.add(starts) if has_own else None
        from_slots = columns.add(_slot_starts(each, other & active, cuts)) if has_other else None
        operands.append((from_buffer, from_slots, columns.add(own) if has_own and has_other else -1))
    return _SumStep(chunks.shape[2], operands, _buffer_store(columns, chunks, cuts, np.zeros_like(active)))


def _buffer_store(columns: _Columns, chunks: NDArray[np.int32], cuts: Cuts, adds: NDArray[np.bool_]) -> _Store:
    active = chunks != NOTHING
    starts, begins, ends = (np.where(active, numbers[chunks], 0) for numbers in cuts[1:])
    whole = bool(((begins == 0) & (ends == cuts.width)).all())
    flag: int | bool = bool(adds[active].any())
    if flag and not adds[active].all():
        flag = columns.add(adds)
    return _Store(columns.add(starts), columns.add(begins), columns.add(ends), whole, flag)


def _slot_starts(places: NDArray[np.int32], active: NDArray[np.bool_], cuts: Cuts) -> NDArray[Any]:
    return np.where(active, (places - 1) * cuts.width, 0)


class _Trace:
    """Traces steps; a table's row `now` has their numbers for this rank."""

    def __init__(self, width: int, chunks: int, ranks: Ranks, combine: Combine) -> None:
        self._width, self._chunks, self._ranks, self._combine = width, chunks, ranks, combine

    def round(self, steps: Sequence[_PermuteStep | _SumStep], now: Any, buffers: Any) -> Any:
        """One round on the buffer and the slots.

        The barrier keeps XLA from fusing the updates of all rounds into every read: that takes minutes to compile. It
        also bounds the memory of rows that are on their way.
        """
        flying = 0
        for step in steps:
            if isinstance(step, _SumStep):
                buffers = self._sum(step, now, buffers)
                continue
            if flying and (flying + step.chunks) * _IN_FLIGHT > self._chunks:
                buffers, flying = lax.optimization_barrier(buffers), 0
            buffers = self._permute(step, now, buffers)
            flying += step.chunks
        return lax.optimization_barrier(buffers)

    def _permute(self, step: _PermuteStep, now: Any, buffers: Any) -> Any:
        flat, slots = buffers
        if step.chunks == 1:
            sent = self._read(flat, now, step.sends)[None]
        else:
            starts = lax.slice(now, (step.sends,), (step.sends + step.chunks,))
            sent = jax.vmap(lambda start: _row(flat, start, self._width))(starts)
        pairs = [(group[src], group[dst]) for group in self._ranks.groups for src, dst in step.pairs]
        came = lax.ppermute(sent, self._ranks.axes, pairs)
        is_whole = len(self._ranks.groups) * len(self._ranks.groups[0]) == self._ranks.devices
        if step.buffer:
            flat = self._store(flat, came, now, step.buffer, is_whole)
        if step.slots:
            slots = self._store(slots, came, now, step.slots, is_whole)
        return flat, slots

    def _sum(self, step: _SumStep, now: Any, buffers: Any) -> Any:
        """Sums rows one after the other."""
        is_whole = len(self._ranks.groups) * len(self._ranks.groups[0]) == self._ranks.devices

        def one(j: Any, buffers: Any) -> Any:
            flat, slots = buffers
            total = None
            for own, other, which in step.operands:
                rows = [
                    self._read(array, now, column, j)
                    for array, column in ((flat, own), (slots, other))
                    if column is not None
                ]
                row = rows[0] if len(rows) == 1 else jnp.where(_entry(now, which + j) != 0, *rows)
                row = _widened(row)
                total = row if total is None else self._combine(total, row)
            assert total is not None
            row = total.astype(flat.dtype)
            return self._store_row(flat, row, now, step.buffer, is_whole, j), slots

        return _each(step.chunks, one, buffers)

    def _store(self, array: Any, rows: Any, now: Any, store: _Store, is_whole: bool) -> Any:
        def one(j: Any, array: Any) -> Any:
            return self._store_row(array, _entry(rows, j), now, store, is_whole, j)

        return _each(rows.shape[0], one, array)

    def _store_row(self, array: Any, row: Any, now: Any, store: _Store, is_whole: bool, j: Any) -> Any:
        start = _entry(now, store.starts + j)
        is_whole = is_whole and store.is_whole
        if store.adds is not False or not is_whole:
            old = _row(array, start, self._width)
            if store.adds is not False:
                total = self._combine(_widened(old), _widened(row)).astype(row.dtype)
                row = total if store.adds is True else jnp.where(_entry(now, store.adds + j) != 0, total, row)
            if not is_whole:
                at = lax.iota(jnp.int32, self._width)
                row = jnp.where((at >= _entry(now, store.begins + j)) & (at < _entry(now, store.ends + j)), row, old)
        return lax.dynamic_update_slice(array, row, (start,), allow_negative_indices=False)

    def _read(self, array: Any, now: Any, column: int, j: Any = 0) -> Any:
        return _row(array, _entry(now, column + j), self._width)


def _each(count: int, one: Callable[[Any, Any], Any], carry: Any) -> Any:
    """Calls `one(j, carry)` for each j; in a loop where there are many."""
    if count > _UNROLLED:
        return lax.fori_loop(0, count, one, carry)
    for j in range(count):
        carry = one(j, carry)
    return carry


def _entry(array: Any, index: Any) -> Any:
    if isinstance(index, int):
        return lax.index_in_dim(array, index, keepdims=False)
    return lax.dynamic_index_in_dim(array, index, keepdims=False, allow_negative_indices=False)


def _row(array: Any, start: Any, width: int) -> Any:
    return lax.dynamic_slice(array, (start,), (width,), allow_negative_indices=False)


def _widened(row: Any) -> Any:
    """As the core adds: numbers of 16 bits in 32."""
    is_half = jnp.issubdtype(row.dtype, jnp.floating) and row.dtype.itemsize == 2
    return row.astype(jnp.float32) if is_half else row
