"""Traces the rounds of a schedule: collective-permutes and sums at offsets that this rank's row of a table holds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcomm.collectives.permutes.steps import (
    UNROLLED,
    Cuts,
    Operand,
    OwnColumns,
    PermuteStep,
    Store,
    SumStep,
    compile_loop,
)
from jaxcomm.program.permutes import Permutes

Combine = Callable[[Any, Any], Any]
_IN_FLIGHT: Final = 8  # at most 1/8 of the buffer is in flight; a permute that would exceed this waits


class Ranks(NamedTuple):
    """The devices that run permutes.

    Attributes:
      axes: the mesh's axes along which the devices are numbered.
      groups: the device of each rank in each group; all groups run the same permutes.
      devices: the number of devices along the axes; devices in no group do nothing.
    """

    axes: tuple[Any, ...]
    groups: Sequence[Sequence[int]]
    devices: int

    def row(self) -> Any:
        """This device's rank in its group, or the number of ranks if it is in no group."""
        ranks = np.full(self.devices, len(self.groups[0]), np.int32)
        for group in self.groups:
            ranks[list(group)] = np.arange(len(group))
        index = lax.axis_index(self.axes)
        if (ranks == np.arange(self.devices)).all():
            return index
        return _entry(jnp.asarray(ranks), index)


def run(permutes: Permutes, flat: Any, cuts: Cuts, ranks: Ranks, combine: Combine) -> Any:
    """Runs all rounds on a flat buffer, and returns the buffer.

    Args:
      permutes: the program.
      flat: the rank's own contribution, [size].
      cuts: the buffer's chunks.
      ranks: the devices.
      combine: the sum, maximum or minimum of two arrays.
    """
    row = ranks.row()
    slots = jnp.broadcast_to(flat[:1], permutes.slots * cuts.width)  # any value, but varying over axes as `flat` does
    trace = _Trace(cuts.width, permutes.chunks, ranks, combine)
    for loop in permutes.loops:
        table, steps = compile_loop(loop, cuts)
        mine = _entry(jnp.asarray(table), row)

        def body(i: Any, buffers: Any, mine: Any = mine, steps: Any = steps) -> Any:
            now = _entry(mine, i)
            for round_ in steps:
                buffers = trace.round(round_, now, buffers)
            return buffers

        buffers = flat, slots
        flat, slots = lax.fori_loop(0, loop.iterations, body, buffers) if loop.iterations > 1 else body(0, buffers)
    return flat


class _Trace:
    """Traces the steps of a round. In its methods, `now` has one step's columns of this rank's table row."""

    def __init__(self, width: int, chunks: int, ranks: Ranks, combine: Combine) -> None:
        self._width, self._chunks, self._ranks, self._combine = width, chunks, ranks, combine

    def round(self, steps: Sequence[OwnColumns], row: Any, buffers: Any) -> Any:
        """Traces one round on the buffer and the slots.

        Without the barriers on the buffers, XLA would fuse the updates of all rounds into every read, and take minutes
        to compile the program. These barriers also bound the memory of rows in flight. The barrier on a step's numbers
        copies the numbers out of the table row, so that similar steps share one kernel, which XLA compiles once.
        """
        flying = 0
        for first, end, step in steps:
            now = lax.optimization_barrier(lax.slice(row, (first,), (end,)))
            if isinstance(step, SumStep):
                buffers = self._sum(step, now, buffers)
                continue
            if flying and (flying + step.chunks) * _IN_FLIGHT > self._chunks:
                buffers, flying = lax.optimization_barrier(buffers), 0
            buffers = self._permute(step, now, buffers)
            flying += step.chunks
        return lax.optimization_barrier(buffers)

    def _permute(self, step: PermuteStep, now: Any, buffers: Any) -> Any:
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

    def _sum(self, step: SumStep, now: Any, buffers: Any) -> Any:
        """Sums rows one after the other, in a loop if there are many."""
        is_whole = len(self._ranks.groups) * len(self._ranks.groups[0]) == self._ranks.devices

        def one(j: Any, buffers: Any) -> Any:
            flat, slots = buffers
            if len(step.operands) < step.terms:
                total = lax.fori_loop(
                    1,
                    step.terms,
                    lambda i, total: self._combine(total, operand(step.operands[0], j * step.terms + i, buffers)),
                    operand(step.operands[0], j * step.terms, buffers),
                )
            else:
                total = functools.reduce(self._combine, (operand(each, j, buffers) for each in step.operands))
            return self._store_row(flat, total.astype(flat.dtype), now, step.buffer, is_whole, j), slots

        def operand(columns: Operand, index: Any, buffers: Any) -> Any:
            pairs = zip(buffers, columns, strict=False)
            rows = [self._read(array, now, column, index) for array, column in pairs if column is not None]
            return _widened(rows[0] if len(rows) == 1 else jnp.where(_entry(now, columns.is_own + index) != 0, *rows))

        return _each(step.chunks, one, buffers)

    def _store(self, array: Any, rows: Any, now: Any, store: Store, is_whole: bool) -> Any:
        def one(j: Any, array: Any) -> Any:
            return self._store_row(array, _entry(rows, j), now, store, is_whole, j)

        return _each(rows.shape[0], one, array)

    def _store_row(self, array: Any, row: Any, now: Any, store: Store, is_whole: bool, j: Any) -> Any:
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
    """Calls `one(j, carry)` for each j below `count`, in a loop if `count` is large."""
    if count > UNROLLED:
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
    """Converts 16-bit floats to 32 bits, because the core adds them in 32 bits."""
    is_half = jnp.issubdtype(row.dtype, jnp.floating) and row.dtype.itemsize == 2
    return row.astype(jnp.float32) if is_half else row
