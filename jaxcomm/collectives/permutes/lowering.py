"""Runs collectives as XLA's own collective-permutes, in the rounds of a schedule.

The calls run on every platform, without our core. They have no deadline and no statistics. Their results equal the
core's, bit for bit, except those of a `late_join` that runs as whole collectives. The operands of each element type
form a call of their own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxcomm import jax_compat, schedules
from jaxcomm.collectives import choice
from jaxcomm.collectives.partition import partitioned_module
from jaxcomm.collectives.permutes import late_join
from jaxcomm.collectives.permutes.programs import compiled, fits, why_not
from jaxcomm.collectives.permutes.rounds import Ranks, run
from jaxcomm.collectives.permutes.steps import Cuts, in_lines
from jaxcomm.collectives.primitive import COLLECTIVES, CoreCollective
from jaxcomm.collectives.ranks import ranks_of
from jaxcomm.collectives.request import Operand, extent
from jaxcomm.environment import EXECUTOR
from jaxcomm.errors import JaxcommError
from jaxcomm.log import say_once
from jaxcomm.schedules import Schedule
from jaxcomm.schedules.schedule import ALIGNMENT

Where = Literal["asked", "planned"]

_COMBINE: Final = {"sum": lax.add, "max": lax.max, "min": lax.min}


class _Program(NamedTuple):
    """The program that all groups of one size run. `run(flat, cuts, on, combine)` runs it on a flat buffer."""

    ranks: int
    chunks: int
    on: Ranks
    run: Callable[[Any, Cuts, Ranks, Any], Any]


@dataclasses.dataclass(frozen=True)
class _PermutedCall:
    """A collective that may run by permutes.

    Attributes:
      collective: the call's kind and reduction.
      name: the call's name in log lines.
      plan, where: as for `lower`.
      is_forced: whether the environment asks for this executor.
      axes: the mesh's axes over which the call runs.
      groups: for each group, its ranks' indices along the axes.
      devices: the number of devices along the axes.
      platform: the devices' platform. On TPUs lax's psum refuses groups of unequal sizes, so late joins run in rounds.
      checks_vma: whether the operands' types say along which axes values vary. lax's psum over groups refuses such
        types, so late joins run in rounds.
    """

    collective: CoreCollective
    name: str
    plan: str
    where: Where
    is_forced: bool
    axes: tuple[Any, ...]
    groups: tuple[tuple[int, ...], ...]
    devices: int
    platform: str
    checks_vma: bool

    def programs(self, operands: Sequence[Operand]) -> list[_Program] | None:
        """The program of each group size, or None if another executor must run the call."""
        nbytes, dtype = extent(operands)
        found = []
        for size in sorted({*map(len, self.groups)} - {1}):
            schedule = self._schedule(size, nbytes, dtype)
            if schedule is None:
                return None
            on = Ranks(self.axes, [group for group in self.groups if len(group) == size], self.devices)
            is_whole = schedule.kind == "late_join" and not self.checks_vma and self.platform != "tpu"
            if reason := why_not(schedule, nbytes, not is_whole):
                self._refuse(reason)
                return None
            if is_whole:
                run_it: Any = partial(late_join.run, schedule, platform=self.platform)
            else:
                run_it = partial(run, compiled(schedule, nbytes))
            found.append(_Program(size, schedule.num_chunks, on, run_it))
        if not fits(operands, self.devices):
            self._refuse("its buffers have 2^31 elements or more")
            return None
        return found

    def _schedule(self, size: int, nbytes: int, dtype: str | None) -> Schedule | None:
        kind = self.collective.kind
        call = choice.SizedCall(kind, size, nbytes, dtype, self.plan, self.name)
        schedule, source = choice.choose_schedule(call)
        if source == "direct":
            direct = schedules.direct(size)
            if not self.is_forced or kind == "all_reduce":
                return direct if self.is_forced else None
            return schedules.half("all_gather" if kind == "all_gather" else "reduce_scatter", direct)
        if self.is_forced:
            return schedule
        if self.where == "asked":
            return schedule if choice.executor(call) == "xla" else None
        return None if choice.uses_nccl(call) else schedule

    def _refuse(self, reason: str) -> None:
        say_once(f"jaxcomm: {self.name} does not run by XLA's permutes: {reason}.")


def find(
    primitive: Primitive,
    context: mlir.LoweringRuleContext,
    plan: str,
    bucket: str,
    params: dict[str, Any],
    *,
    where: Where,
) -> Callable[[mlir.LoweringRuleContext, Sequence[Any]], Sequence[Any]] | None:
    """Returns the lowering of our counterpart of a lax collective to permutes; None if another executor must run it.

    The lowering takes the call's context and its operands.

    Args:
      primitive: lax's primitive.
      context, plan, bucket, params: the arguments with which JAX lowers our counterpart's form for the core.
      where: the calls to run by permutes. "asked": calls for which the environment or the plan's entry names this
        executor. "planned": all calls for which the plan has a schedule.
    """
    forced = is_forced()
    if not forced and plan in ("", choice.AUTO):
        return None
    collective = COLLECTIVES[primitive.name]
    name, axes, _ = ranks_of(primitive, context, bucket, params)
    scope: Any = context.module_context.axis_context
    over = params["axes"] if collective.kind == "all_reduce" else params["axis_name"]
    over, numbers = _in_mesh_order(scope.mesh, over if isinstance(over, tuple) else (over,))
    devices = len(numbers)
    given = params.get("axis_index_groups") or [range(devices)]
    groups = tuple(tuple(numbers[index] for index in group) for group in given)
    if max(map(len, groups)) == 1:
        return None
    platforms = context.platforms or context.module_context.platforms
    avals = [_varying(aval) for aval in context.avals_in]
    checks_vma = any(aval.manual_axis_type.varying for aval in avals)
    where_called = f"{name} over '{axes}'"
    call = _PermutedCall(collective, where_called, plan, where, forced, over, groups, devices, platforms[0], checks_vma)
    whole = [(aval.shape, aval.dtype) for aval in avals]
    programs = call.programs(whole)
    if programs is None:
        return None
    if any(size > 1 for axis, size in scope.mesh.shape.items() if axis not in scope.manual_axes):
        # Flattening would make XLA gather operands that it still partitions over automatic axes. XLA therefore gets the
        # program of one shard.
        module = partial(_shard_module, call, programs, scope.mesh, platforms)
        digest = hashlib.sha256(repr((call, whole, scope.mesh.shape, platforms)).encode()).hexdigest()
        unsharded = range(0 if collective.kind == "all_reduce" else len(whole))
        return lambda context, operands: partitioned_module(context, operands, f"permutes {digest}", module, unsharded)
    rule: Any = mlir.lower_fun(partial(_run, collective, programs), multiple_results=True)
    return lambda context, operands: rule(context.replace(avals_in=avals), *operands)


def _varying(aval: Any) -> Any:
    """The operand's type with unreduced and reduced axes turned into varying axes, as ppermute requires."""
    axes = aval.manual_axis_type
    whole = axes.varying | axes.unreduced | axes.reduced
    return aval.update(manual_axis_type=type(axes)(varying=whole))


def _in_mesh_order(mesh: Any, axes: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[int]]:
    """Sorts the axes in the mesh's order, in which ppermute numbers devices.

    The second result maps a device's index along `axes` to the device's index along the sorted axes.
    """
    names = list(mesh.shape)
    order = sorted(range(len(axes)), key=lambda i: names.index(axes[i]))
    found = tuple(axes[i] for i in order)
    grid = np.arange(math.prod(mesh.shape[axis] for axis in axes)).reshape([mesh.shape[axis] for axis in found])
    numbers: list[int] = grid.transpose(np.argsort(order)).ravel().tolist()
    return found, numbers


def _shard_module(
    call: _PermutedCall, of_whole: Sequence[_Program], mesh: Any, platforms: Sequence[str], operands: Sequence[Operand]
) -> bytes:
    """The module of one shard.

    It runs the schedule for the shard's size or, if that schedule cannot run by permutes, the schedule for the
    operands' whole size.
    """
    programs = call.programs(operands) or of_whole
    avals = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in operands]
    return jax_compat.shard_module(partial(_run, call.collective, programs), avals, mesh, platforms)


def require_core() -> None:
    """Checks that the core runs the calls, for commands that read the calls' times from the core's records.

    Raises:
      JaxcommError: the environment makes XLA's collectives run all calls.
    """
    if is_forced():
        raise JaxcommError(
            f"{EXECUTOR} is 'xla', so XLA's collectives run all sums; this command times those that the core runs.\n"
            f"  Cure: unset {EXECUTOR}; to time XLA's collectives: jaxcomm profile --executor xla"
        )


def is_forced() -> bool:
    """Whether JAXCOMM_EXECUTOR makes XLA's collectives run all calls.

    Raises:
      JaxcommError: the variable names no executor.
    """
    value = os.environ.get(EXECUTOR, "")
    if value not in ("", "core", "xla"):
        raise JaxcommError(f"{EXECUTOR} is {value!r}.\n  Cure: set it to xla or core, or unset it.")
    return value == "xla"


def _run(collective: CoreCollective, programs: Sequence[_Program], *leaves: Any) -> list[Any]:
    """Runs the collective once for each element type. The leaves of one type are concatenated."""
    results: list[Any] = [None] * len(leaves)
    by_kind = {"all_reduce": _all_reduce, "reduce_scatter": _reduce_scatter, "all_gather": _all_gather}
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        indices = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        reduced = by_kind[collective.kind](_COMBINE[collective.reduction], programs, [leaves[i] for i in indices])
        for i, result in zip(indices, reduced, strict=True):
            results[i] = result
    return results


def _all_reduce(combine: Any, programs: Sequence[_Program], leaves: Sequence[Any]) -> list[Any]:
    """All-reduces the leaves in one buffer. Each leaf starts on a cache line, so that the chunks equal the core's."""
    line = ALIGNMENT // leaves[0].dtype.itemsize
    flat = leaves[0].reshape(-1)
    if len(leaves) > 1:
        flat = jnp.concatenate([jnp.pad(leaf.reshape(-1), (0, -leaf.size % line)) for leaf in leaves])
    if flat.size:
        for program in programs:
            cuts = in_lines(flat.size, flat.dtype.itemsize, program.chunks)
            flat = program.run(flat, cuts, program.on, combine)
    starts = np.cumsum([0, *(leaf.size + -leaf.size % line for leaf in leaves)])
    return [
        flat[start : start + leaf.size].reshape(leaf.shape)
        for start, leaf in zip(starts.tolist(), leaves, strict=False)
    ]


def _reduce_scatter(combine: Any, programs: Sequence[_Program], leaves: Sequence[Any]) -> list[Any]:
    (program,) = programs
    n = program.ranks
    rows = jnp.concatenate([leaf.reshape(n, leaf.size // n) for leaf in leaves], axis=1)
    width = rows.shape[1]
    own = rows[0]
    if width:
        flat = program.run(rows.reshape(-1), _equal(n, width), program.on, combine)
        own = lax.dynamic_slice(flat, (program.on.row() * width,), (width,), allow_negative_indices=False)
    shapes = [(leaf.shape[0] // n, *leaf.shape[1:]) for leaf in leaves]
    ends = np.cumsum([math.prod(shape) for shape in shapes])[:-1].tolist()
    return [part.reshape(shape) for part, shape in zip(jnp.split(own, ends), shapes, strict=True)]


def _all_gather(combine: Any, programs: Sequence[_Program], leaves: Sequence[Any]) -> list[Any]:
    (program,) = programs
    n = program.ranks
    row = jnp.concatenate([leaf.reshape(-1) for leaf in leaves])
    rows = jnp.tile(row, n)  # n copies; the program replaces every copy but this rank's own by the row of another rank
    if row.size:
        rows = program.run(rows, _equal(n, row.size), program.on, combine)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1].tolist()
    parts = jnp.split(rows.reshape(n, row.size), ends, axis=1)
    return [part.reshape(n * leaf.shape[0], *leaf.shape[1:]) for part, leaf in zip(parts, leaves, strict=True)]


def _equal(ranks: int, width: int) -> Cuts:
    return Cuts.at(np.arange(ranks + 1, dtype=np.int64) * width)
