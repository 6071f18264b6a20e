"""What a collective becomes when a step is compiled.

On CPUs, and for sums over GPUs, it is a call of the core; elsewhere, and where a plan gives a sum over GPUs to NCCL,
what lax makes of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxcomm import communicator, jax_compat
from jaxcomm.collectives.custom_call import attributes, is_in_place, target
from jaxcomm.collectives.partition import partitioned_call
from jaxcomm.collectives.primitive import COLLECTIVES, CORE, OUR_PARAMS, PRIMITIVES, VARY, bind_in_core_form
from jaxcomm.collectives.request import Device, Groups, Request
from jaxcomm.log import say_once


def register() -> None:
    """Tells JAX how the counterparts of lax's collectives are lowered."""
    for lax, ours in PRIMITIVES.items():
        jax_compat.require_devices(ours)
        mlir.register_lowering(ours, partial(_lower, lax), cacheable=False)
        mlir.register_lowering(CORE[lax], partial(lower_to_core, lax), platform="cpu", cacheable=False)
        mlir.register_lowering(CORE[lax], partial(_lower_on_gpus, lax), platform="cuda", cacheable=False)
        mlir.register_lowering(CORE[lax], partial(lower_to_lax, lax), cacheable=False)
    mlir.register_lowering(VARY, lambda context, *operands, **params: operands)


def _lower(lax: Primitive, context: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Sequence[Any]:
    """Ours, whatever the platform: lax's where there are no devices to lower for, or else in the core's form."""
    if not has_devices(context, COLLECTIVES[lax.name].name):
        return as_lax(lax, context, *operands, **{key: params[key] for key in params if key not in OUR_PARAMS})
    where = jax_compat.source_line(context)
    rule = mlir.lower_fun(lambda *xs: bind_in_core_form(lax, xs, params, where), multiple_results=True)
    results: Sequence[Any] = rule(context, *operands)
    return results


def has_devices(context: mlir.LoweringRuleContext, collective: str) -> bool:
    """Whether the step is lowered for devices that are known; if not, says once that the collective is lax's."""
    scope: Any = context.module_context.axis_context
    why = ""
    if jax_compat.is_export(context) or len(context.module_context.platforms) > 1:
        why = "it is lowered for devices that are not known yet"
    try:
        jax_compat.devices(scope.mesh)
    except LookupError as error:
        why = str(error)
    if why:
        say_once(f"jaxcomm.{collective} runs as jax.lax's, without a plan: {why}.")
    return not why


def lower_to_core(
    lax: Primitive,
    context: mlir.LoweringRuleContext,
    *operands: Any,
    plan: str,
    where: str,
    bucket: str = "",
    **params: Any,
) -> Sequence[Any]:
    """The lowering rule of our counterpart of `lax` on CPUs, in the core's form."""
    collective = COLLECTIVES[lax.name]
    name, axes, positions = ranks_of(lax, context, bucket, params)
    if max(map(len, positions)) == 1:
        return operands
    communicator.start()
    scope: Any = context.module_context.axis_context
    groups = cpus_at(scope.mesh, positions)
    request = Request(name, collective.kind, collective.reduction, axes, plan, groups)
    if spans_processes(groups):
        from jaxcomm.distributed.lowering import with_site

        request = with_site(request, context, where)
    return call_core(context, operands, request)


def call_core(context: mlir.LoweringRuleContext, operands: Sequence[Any], request: Request) -> Sequence[Any]:
    """The custom call of the core for this request, or, where XLA still partitions, one that becomes it."""
    scope: Any = context.module_context.axis_context
    avals: Sequence[Any] = context.avals_in
    config = attributes(request, [(aval.shape, aval.dtype) for aval in avals])
    if any(size > 1 for axis, size in scope.mesh.shape.items() if axis not in scope.manual_axes):
        # The choice falls anew for the sizes of shards, but not if JAX has it cached.
        communicator.compile_plan(request.plan)
        return partitioned_call(context, operands, request)
    aliases = {i: i for i in range(len(operands))} if is_in_place(request) else None
    results: Sequence[Any] = jax.ffi.ffi_lowering(target(request), operand_output_aliases=aliases)(
        context, *operands, **config
    )
    return results


def ranks_of(
    lax: Primitive, context: mlir.LoweringRuleContext, bucket: str, params: Mapping[str, Any]
) -> tuple[str, str, list[list[int]]]:
    """The call's name, its axes' names, and the positions in the mesh of each group's ranks."""
    collective = COLLECTIVES[lax.name]
    given = params["axes"] if collective.kind == "all_reduce" else params["axis_name"]
    over = given if isinstance(given, tuple) else (given,)
    name, axes = f"{collective.name} {bucket}" if bucket else collective.name, ",".join(map(str, over))
    scope: Any = context.module_context.axis_context
    return name, axes, positions_of(scope.mesh, over, params.get("axis_index_groups"), f"{name} over '{axes}'")


def positions_of(
    mesh: Any, axes: tuple[Any, ...], index_groups: tuple[tuple[int, ...], ...] | None, where: str
) -> list[list[int]]:
    """Positions in the mesh of each group's ranks, which count along `axes`, the first of them slowest."""
    names = list(mesh.shape)
    positions = np.arange(mesh.size).reshape(tuple(mesh.shape.values()))
    over = [names.index(axis) for axis in axes]
    rest = [i for i in range(len(names)) if i not in over]
    table = positions.transpose(rest + over).reshape(-1, math.prod(mesh.shape[axis] for axis in axes))
    if index_groups is None:
        lists: list[list[int]] = table.tolist()
        return lists
    if (members := sum(len(group) for group in index_groups)) != table.shape[1]:
        raise ValueError(
            f"{where}: axis_index_groups have {members} of the {table.shape[1]} ranks.\n  Cure: name each rank once."
        )
    return [[int(row[index]) for index in group] for row in table for group in index_groups]


def spans_processes(groups: Groups) -> bool:
    """Whether a group has ranks in several processes."""
    return any(len({device.process for device in group}) > 1 for group in groups)


def cpus_at(mesh: Any, positions: Sequence[Sequence[int]]) -> Groups:
    """The CPU devices at these positions."""
    groups = devices_at(mesh, positions)
    return tuple(tuple(Device(device.process_index, device.id) for device in group) for group in groups)


def devices_at(mesh: Any, positions: Sequence[Sequence[int]]) -> list[list[Any]]:
    """The devices at these positions."""
    devices = jax_compat.devices(mesh)
    return [[devices[position] for position in group] for group in positions]


def _lower_on_gpus(
    lax: Primitive, context: mlir.LoweringRuleContext, *operands: Any, plan: str, bucket: str, where: str, **params: Any
) -> Sequence[Any]:
    """What is for GPUs is imported where a step is lowered for them."""
    del where
    from jaxcomm.gpu import psum

    return psum.lower(lax, context, *operands, plan=plan, bucket=bucket, **params)


def lower_to_lax(
    lax: Primitive, context: mlir.LoweringRuleContext, *operands: Any, plan: str, bucket: str, where: str, **params: Any
) -> Sequence[Any]:
    del plan, bucket, where
    say_that_lax_runs(context)
    return as_lax(lax, context, *operands, **params)


def as_lax(lax: Primitive, context: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Sequence[Any]:
    results: Sequence[Any] = mlir.lower_fun(lambda *xs: [lax.bind(x, **params) for x in xs], multiple_results=True)(
        context, *operands
    )
    return results


def say_that_lax_runs(context: mlir.LoweringRuleContext) -> None:
    """Logs, once, that there is no core."""
    platforms = ", ".join(context.module_context.platforms)
    say_once(f"jaxcomm has no core for {platforms} yet: its collectives run as jax.lax's there, without a plan.")
