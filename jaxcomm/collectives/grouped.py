"""A sum whose groups are an operand: an array with the number of each rank's group, read when the step runs.

One compiled step therefore serves any division of the ranks, whereas lax's axis_index_groups are part of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxcomm import jax_compat
from jaxcomm.collectives import active_plan
from jaxcomm.collectives.axes import AxisName, names, varying
from jaxcomm.collectives.call_site import with_site
from jaxcomm.collectives.lax_lowering import has_devices, say_that_lax_runs
from jaxcomm.collectives.lowering import call_core
from jaxcomm.collectives.primitive import COLLECTIVES
from jaxcomm.collectives.ranks import cpus_at, positions_of, spans_processes
from jaxcomm.collectives.request import Request

_NAME = "group_sum"


def group_sum(x: Any, groups: jax.Array, axis_name: AxisName, bucket: str = "") -> Any:
    """Sums a tree over the ranks of `axis_name` with equal numbers in `groups`; ranks of a group get the same bits.

    If ranks pass different `groups`, or a number out of range, the step fails on CPUs; the error says which rank passed
    which groups. Other platforms run one sum of lax for each group. They raise no such error: they return NaN, or for
    integers the type's largest value.

    Args:
      x: tree of arrays.
      groups: int32 [ranks], from 0 to ranks - 1, the same on all ranks.
      axis_name: axis of the mesh, or a tuple of axes, along which ranks are numbered in row-major order.
      bucket: names the part of the parameters that `x` has, for error texts and statistics; "" if `x` has all of them.

    Raises:
      TypeError: an element type that the core does not support.
      ValueError: `groups` of another shape or type.
      NotImplementedError: the axis is jax.vmap's, or `groups` differ within a batch of jax.vmap.
    """
    ranks = lax.axis_size(names(axis_name))
    if groups.shape != (ranks,) or groups.dtype != jnp.int32:
        raise ValueError(f"{_NAME}: groups are {groups.dtype}{list(groups.shape)}; they must be int32[{ranks}]")
    axes = names(axis_name)
    leaves: list[Any]
    tree: Any
    leaves, tree = jax.tree.flatten(x)
    operands = [varying(jnp.asarray(leaf), axes) for leaf in leaves]  # results vary: groups have different sums
    return tree.unflatten(_grouped.bind(groups, *operands, axes=axes, bucket=bucket)[1:])


def _abstract_eval(groups: Any, *avals: Any, axes: tuple[Any, ...], bucket: str) -> list[Any]:
    del axes, bucket
    for aval in avals:
        if aval.dtype.name not in COLLECTIVES["psum"].dtypes:
            raise TypeError(
                f"jaxcomm: {_NAME} cannot take {aval.dtype.name}.\n  Cure: leave it out, or convert it to a float."
            )
    return [groups, *avals]


def _lower(context: mlir.LoweringRuleContext, *operands: Any, axes: tuple[Any, ...], bucket: str) -> Sequence[Any]:
    name = f"{_NAME} {bucket}" if bucket else _NAME
    where = f"{name} over '{','.join(map(str, axes))}'"
    scope: Any = context.module_context.axis_context
    positions = positions_of(scope.mesh, axes, None, where)
    if len(positions[0]) == 1:
        return operands
    if not has_devices(context, _NAME):
        return _as_lax(context, *operands, axes=axes)
    active_plan.start()
    devices = cpus_at(scope.mesh, positions)
    request = Request(name, "all_reduce", "sum", ",".join(map(str, axes)), "", devices, groups_by_operand=True)
    if spans_processes(devices):
        request = with_site(request, context, jax_compat.source_line(context))
    return call_core(context, operands, request)


def _lower_to_lax(
    context: mlir.LoweringRuleContext, *operands: Any, axes: tuple[Any, ...], bucket: str
) -> Sequence[Any]:
    del bucket
    say_that_lax_runs(context)
    return _as_lax(context, *operands, axes=axes)


def _as_lax(context: mlir.LoweringRuleContext, *operands: Any, axes: tuple[Any, ...]) -> Sequence[Any]:
    results: Sequence[Any] = mlir.lower_fun(partial(_in_lax, axes=axes), multiple_results=True)(context, *operands)
    return results


def _in_lax(groups: jax.Array, *leaves: jax.Array, axes: tuple[Any, ...]) -> list[jax.Array]:
    """Runs one masked sum for each group, one after the other.

    All ranks therefore run the same collectives, and the memory does not grow with the number of groups.
    """
    ranks, mine = groups.size, groups[lax.axis_index(axes)]
    low, high = lax.pmin(groups, axes), lax.pmax(groups, axes)
    sound = jnp.all((low == high) & (low >= 0) & (high < ranks))

    def add(group: jax.Array, sums: list[jax.Array]) -> list[jax.Array]:
        parts = lax.psum([jnp.where(mine == group, leaf, 0) for leaf in leaves], axes)
        return [jnp.where(mine == group, part, total) for part, total in zip(parts, sums, strict=True)]

    sums = lax.fori_loop(0, jnp.clip(high.max() + 1, 0, ranks), add, list(leaves))
    return [groups, *(jnp.where(sound, total, _nonsense(total.dtype)) for total in sums)]


def _nonsense(dtype: Any) -> Any:
    return jnp.nan if jnp.issubdtype(dtype, jnp.inexact) else np.iinfo(dtype).max


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    groups = primals[0]
    moving = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero) and i > 0]
    results = _grouped.bind(*primals, **params)
    changes = [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    for i, change in zip(moving, _grouped.bind(groups, *[tangents[i] for i in moving], **params)[1:], strict=True):
        changes[i] = change
    return results, changes


def _transpose(cotangents: Sequence[Any], groups: Any, *leaves: Any, **params: Any) -> Sequence[Any]:
    """Groups are symmetric, so the sum is its own transpose."""
    moving = [i for i, cotangent in enumerate(cotangents) if i > 0 and not isinstance(cotangent, ad.Zero)]
    results: list[Any] = [None, *(ad.Zero(leaf.aval) for leaf in leaves)]
    for i, result in zip(moving, _grouped.bind(groups, *[cotangents[i] for i in moving], **params)[1:], strict=True):
        results[i] = result
    return results


def _batch(
    batch: Any, operands: Sequence[Any], dims: Sequence[Any], *, axes: tuple[Any, ...], bucket: str
) -> tuple[Sequence[Any], Sequence[Any]]:
    if batch.name in axes:
        raise NotImplementedError(
            f"{_NAME}: axis {batch.name!r} is jax.vmap's, but groups are of devices.\n"
            "  Cure: jax.shard_map over a mesh with this axis."
        )
    if dims[0] is not None:
        raise NotImplementedError(
            f"{_NAME}: the groups differ within a batch of jax.vmap.\n  Cure: the same groups, or step, for all of it."
        )
    return _grouped.bind(*operands, axes=axes, bucket=bucket), dims


_grouped = Primitive(f"jaxcomm_{_NAME}")
_grouped.multiple_results = True
_grouped.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[_grouped] = _jvp
ad.primitive_transposes[_grouped] = _transpose
batching.fancy_primitive_batchers[_grouped] = _batch
jax_compat.require_devices(_grouped)
mlir.register_lowering(_grouped, _lower, platform="cpu", cacheable=False)
mlir.register_lowering(_grouped, _lower_to_lax, cacheable=False)
