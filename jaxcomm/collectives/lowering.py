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

from jaxcomm import communicator, ffi, jax_compat, processes
from jaxcomm.collectives import hosts
from jaxcomm.collectives.partition import partitioned_call
from jaxcomm.collectives.primitive import COLLECTIVES, CORE, OUR_PARAMS, PRIMITIVES, bind_in_core_form
from jaxcomm.collectives.request import Request, extent
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi import cuda, fused, nccl
from jaxcomm.log import say_once


def register() -> None:
    """Tells JAX how the counterparts of lax's collectives are lowered."""
    for lax, ours in PRIMITIVES.items():
        jax_compat.require_devices(ours)
        mlir.register_lowering(ours, partial(_lower, lax), cacheable=False)
        mlir.register_lowering(CORE[lax], partial(_lower_on_cpus, lax), platform="cpu", cacheable=False)
        mlir.register_lowering(CORE[lax], partial(_lower_on_gpus, lax), platform="cuda", cacheable=False)
        mlir.register_lowering(CORE[lax], partial(_lower_to_lax, lax), cacheable=False)


def _lower(lax: Primitive, context: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Sequence[Any]:
    """Ours, whatever the platform: lax's where there are no devices to lower for, or else in the core's form."""
    if not has_devices(context, COLLECTIVES[lax.name].name):
        return _as_lax(lax, context, *operands, **{key: params[key] for key in params if key not in OUR_PARAMS})
    rule = mlir.lower_fun(lambda *xs: bind_in_core_form(lax, xs, params), multiple_results=True)
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


def is_in_one_process(mesh: Any, positions: Sequence[Sequence[int]], where: str) -> bool:
    """Whether each group is; if not, says once that the collective is lax's."""
    most = max(len({device.process_index for device in group}) for group in _devices(mesh, positions))
    if most > 1:
        say_once(
            f"{where} runs as jax.lax's, without a plan: its ranks live in {most} processes, and this build's core "
            "reduces within one on CPUs."
        )
    return most == 1


def _lower_on_cpus(
    lax: Primitive, context: mlir.LoweringRuleContext, *operands: Any, plan: str, bucket: str, **params: Any
) -> Sequence[Any]:
    if not core_reaches(lax, context, bucket, params):
        return _as_lax(lax, context, *operands, **params)
    return lower_to_core(lax, context, *operands, plan=plan, bucket=bucket, **params)


def core_reaches(lax: Primitive, context: mlir.LoweringRuleContext, bucket: str, params: Mapping[str, Any]) -> bool:
    """Whether all ranks of each group are in one process; if not, says once that the collective is lax's."""
    name, axes, positions = _ranks(lax, context, bucket, params)
    scope: Any = context.module_context.axis_context
    return is_in_one_process(scope.mesh, positions, f"{name} over '{axes}'")


def lower_to_core(
    lax: Primitive,
    context: mlir.LoweringRuleContext,
    *operands: Any,
    plan: str,
    bucket: str = "",
    on_gpus: bool = False,
    **params: Any,
) -> Sequence[Any]:
    """The lowering rule of our counterpart of `lax` where there is a core."""
    collective = COLLECTIVES[lax.name]
    name, axes, positions = _ranks(lax, context, bucket, params)
    if max(map(len, positions)) == 1:
        return operands
    communicator.start()
    scope: Any = context.module_context.axis_context
    groups = (gpu_ids if on_gpus else device_ids)(scope.mesh, positions)
    request = Request(name, collective.kind, collective.reduction, axes, plan, groups)
    return call_core(context, operands, request)


def call_core(context: mlir.LoweringRuleContext, operands: Sequence[Any], request: Request) -> Sequence[Any]:
    """The custom call of the core for this request, or, where XLA still partitions, one that becomes it."""
    scope: Any = context.module_context.axis_context
    avals: Sequence[Any] = context.avals_in
    attributes = request.attributes([(aval.shape, aval.dtype) for aval in avals])
    if any(size > 1 for axis, size in scope.mesh.shape.items() if axis not in scope.manual_axes):
        # The choice falls anew for the sizes of shards, but not if JAX has it cached.
        communicator.compile_plan(request.plan)
        return partitioned_call(context, operands, request)
    aliases = {i: i for i in range(len(operands))} if request.in_place else None
    results: Sequence[Any] = jax.ffi.ffi_lowering(request.target, operand_output_aliases=aliases)(
        context, *operands, **attributes
    )
    return results


def _ranks(
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


def device_ids(mesh: Any, positions: Sequence[Sequence[int]]) -> list[list[int]]:
    """The CPU devices at these positions."""
    return [[device.id for device in group] for group in _devices(mesh, positions)]


def gpu_ids(mesh: Any, positions: Sequence[Sequence[int]]) -> list[list[int]]:
    """The GPUs at these positions, all of a group on one host: process << 16 | CUDA's number of the device there."""
    groups = _devices(mesh, positions)
    if jax.process_count() > 1:
        ffi.join_processes()
    return [[device.process_index << 16 | processes.hardware_number(device) for device in group] for group in groups]


def _devices(mesh: Any, positions: Sequence[Sequence[int]]) -> list[list[Any]]:
    devices = jax_compat.devices(mesh)
    return [[devices[position] for position in group] for group in positions]


def _lower_on_gpus(
    lax: Primitive, context: mlir.LoweringRuleContext, *operands: Any, plan: str, bucket: str, **params: Any
) -> Sequence[Any]:
    collective = COLLECTIVES[lax.name]
    unchanged = {"plan": plan, "bucket": bucket, **params}
    if not (fused.DEVICES or nccl.HOSTS) or not cuda.is_built() or collective.kind != "all_reduce":
        return _lower_to_lax(lax, context, *operands, **unchanged)
    communicator.start()
    scope: Any = context.module_context.axis_context
    name, axes, positions = _ranks(lax, context, bucket, params)
    devices = _devices(scope.mesh, positions)
    on_hosts = any(hosts.several({device.process_index for device in group}) for group in devices)
    if not (nccl.HOSTS if on_hosts else fused.DEVICES):
        return _lower_to_lax(lax, context, *operands, **unchanged)
    avals: Sequence[Any] = context.avals_in
    nbytes, dtype = extent([(aval.shape, aval.dtype) for aval in avals])
    if communicator.leaves_to_nccl(max(map(len, positions)), nbytes, dtype, plan):
        return _as_lax(lax, context, *operands, **params)
    automatic = sorted(
        str(axis) for axis, size in scope.mesh.shape.items() if size > 1 and axis not in scope.manual_axes
    )
    if automatic:
        raise JaxcommError(
            f"{collective.name} on GPUs: XLA still partitions over {', '.join(automatic)}.\n"
            "  Cure: let `shard_map` take all axes of the mesh, or call jax.lax for this one."
        )
    if on_hosts:
        groups = tuple(
            tuple((device.process_index, processes.hardware_number(device)) for device in group) for group in devices
        )
        call = hosts.AllReduce(name, collective.reduction, axes, plan, groups, positions)
        return hosts.lower(context, operands, call)
    return lower_to_core(lax, context, *operands, on_gpus=True, **unchanged)


def _lower_to_lax(
    lax: Primitive, context: mlir.LoweringRuleContext, *operands: Any, plan: str, bucket: str, **params: Any
) -> Sequence[Any]:
    say_that_lax_runs(context, COLLECTIVES[lax.name].name)
    return _as_lax(lax, context, *operands, **params)


def _as_lax(lax: Primitive, context: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Sequence[Any]:
    results: Sequence[Any] = mlir.lower_fun(lambda *xs: [lax.bind(x, **params) for x in xs], multiple_results=True)(
        context, *operands
    )
    return results


def say_that_lax_runs(context: mlir.LoweringRuleContext, collective: str) -> None:
    """Logs, once, that there is no core for a collective; if there is none for any, that."""
    platforms = ", ".join(context.module_context.platforms)
    if platforms == "cuda" and cuda.is_built() and (fused.DEVICES or nccl.HOSTS):
        say_once(f"jaxcomm has no core for this {collective} on cuda yet: it runs as jax.lax's, without a plan.")
    else:
        say_once(f"jaxcomm has no core for {platforms} yet: its collectives run as jax.lax's there, without a plan.")
