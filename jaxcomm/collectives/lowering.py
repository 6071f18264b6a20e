"""Lowers a collective when a step is compiled.

On CPUs the core runs all collectives; on GPUs it runs the sums. On other platforms, and on GPUs if the plan says that
NCCL runs the sum, lax's own collective runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxcomm import ffi, jax_compat
from jaxcomm.collectives import active_plan, choice
from jaxcomm.collectives.call_site import with_site
from jaxcomm.collectives.custom_call import attributes, is_in_place
from jaxcomm.collectives.lax_lowering import as_lax, has_devices, lower_to_lax, without_first, without_losses
from jaxcomm.collectives.partition import partitioned_call
from jaxcomm.collectives.permutes import lowering as permutes
from jaxcomm.collectives.platforms import rules_of
from jaxcomm.collectives.primitive import COLLECTIVES, CORE, PRIMITIVES, VARY, bind_in_core_form
from jaxcomm.collectives.ranks import cpus_at, ranks_of, spans_processes
from jaxcomm.collectives.recorded import record
from jaxcomm.collectives.request import AllowedDrop, Request, extent


def register() -> None:
    """Registers with JAX how our counterparts of lax's collectives are lowered."""
    for lax, ours in PRIMITIVES.items():
        jax_compat.require_devices(ours)
        mlir.register_lowering(ours, partial(_lower, lax), cacheable=False)
        mlir.register_lowering(CORE[lax], partial(lower_to_core, lax), platform="cpu", cacheable=False)
        mlir.register_lowering(CORE[lax], partial(_lower_on_gpus, lax), platform="cuda", cacheable=False)
        mlir.register_lowering(CORE[lax], partial(_lower_elsewhere, lax), cacheable=False)
    mlir.register_lowering(VARY, lambda context, *operands, **params: operands)


def _lower(lax: Primitive, context: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Sequence[Any]:
    """Lowers our primitive on any platform: to its form for the core, or to lax's collective if devices are unknown."""
    if not has_devices(context, COLLECTIVES[lax.name].name):
        return as_lax(lax, context, *operands, **params)
    where = jax_compat.source_line(context)
    rule = mlir.lower_fun(lambda *xs: bind_in_core_form(lax, xs, params, where), multiple_results=True)
    results: Sequence[Any] = rule(context, *operands)
    return results


def lower_to_core(
    lax: Primitive,
    context: mlir.LoweringRuleContext,
    *operands: Any,
    plan: str,
    where: str,
    bucket: str = "",
    drop: AllowedDrop | None = None,
    **params: Any,
) -> Sequence[Any]:
    """Lowers our counterpart of the primitive `lax`, in its form for the core, on CPUs.

    The core runs the collective, unless the environment or the plan names XLA's permutes or lax's own collective.
    """
    collective = COLLECTIVES[lax.name]
    name, axes, positions = ranks_of(lax, context, bucket, params)
    if max(map(len, positions)) == 1:
        return operands if drop is None else without_losses(context, operands, operands[1:])
    exact = context if drop is None else without_first(context)
    run_by_xla = _by_xla(lax, exact, operands[drop is not None :], plan, bucket, params, where)
    if run_by_xla is not None:
        return run_by_xla if drop is None else without_losses(context, operands, run_by_xla)
    active_plan.start()
    scope: Any = context.module_context.axis_context
    groups = cpus_at(scope.mesh, positions)
    request = Request(name, collective.kind, collective.reduction, axes, plan, groups, tries=active_plan.tries(plan))
    if spans_processes(groups):
        request = with_site(request, context, where)
    if drop is None:
        return call_core(context, operands, request)
    if request.site and not _is_partitioned(scope.mesh, scope.manual_axes):
        return call_core(context, operands, dataclasses.replace(request, drop=drop))
    # Within a process, and in a step that XLA still partitions, no part is dropped.
    return without_losses(context, operands, call_core(exact, operands[1:], request))


def call_core(context: mlir.LoweringRuleContext, operands: Sequence[Any], request: Request) -> Sequence[Any]:
    """The results of the core's custom call for this request.

    In a step that XLA still partitions, XLA replaces the call made here by the core's custom call.
    """
    scope: Any = context.module_context.axis_context
    avals: Sequence[Any] = context.avals_in
    is_plain = not (request.groups_by_operand or request.drop)
    if request.kind == "all_reduce" and request.site and is_plain and not jax_compat.step_donates(context):
        # For a sum in place, XLA would first copy arguments into fresh memory.
        request = dataclasses.replace(request, keeps_operands=all(map(jax_compat.is_argument, operands)))
    config = attributes(request, [(aval.shape, aval.dtype) for aval in avals])
    if _is_partitioned(scope.mesh, scope.manual_axes):
        # The size of the shards selects the program when XLA partitions the step. An executable from JAX's cache is not
        # partitioned again in this process, so all programs that it may name are registered here.
        choice.compile_plan(request.plan)
        return partitioned_call(context, operands, request)
    aliases = {i: i for i in range(len(operands))} if is_in_place(request) else None
    results: Sequence[Any] = jax.ffi.ffi_lowering(ffi.TARGET, operand_output_aliases=aliases)(
        context, *operands, **config
    )
    return results


def _is_partitioned(mesh: Any, manual_axes: Any) -> bool:
    """Whether XLA still partitions the step, over axes that are not manual."""
    return any(size > 1 for axis, size in mesh.shape.items() if axis not in manual_axes)


def _lower_on_gpus(
    lax: Primitive,
    context: mlir.LoweringRuleContext,
    *operands: Any,
    plan: str,
    bucket: str,
    drop: Any,
    where: str,
    **params: Any,
) -> Sequence[Any]:
    if drop is not None:  # sums over GPUs have no packet loss, so no part is dropped
        exact = without_first(context)
        its = {"plan": plan, "bucket": bucket, "drop": None, "where": where, **params}
        return without_losses(context, operands, _lower_on_gpus(lax, exact, *operands[1:], **its))
    if (found := _by_xla(lax, context, operands, plan, bucket, params, where)) is not None:
        return found
    return rules_of("cuda").lower(lax, context, *operands, plan=plan, bucket=bucket, where=where, **params)


def _lower_elsewhere(
    lax: Primitive,
    context: mlir.LoweringRuleContext,
    *operands: Any,
    plan: str,
    bucket: str = "",
    drop: Any = None,
    where: str,
    **params: Any,
) -> Sequence[Any]:
    """Lowers for platforms without an executor of ours, mainly TPUs."""
    if drop is None and (found := _by_xla(lax, context, operands, plan, bucket, params, where)) is not None:
        return found
    its = {"plan": plan, "bucket": bucket, "drop": drop, **params}
    return lower_to_lax(lax, context, *operands, where=where, **its)


def _by_xla(
    lax: Primitive,
    context: mlir.LoweringRuleContext,
    operands: Sequence[Any],
    plan: str,
    bucket: str,
    params: dict[str, Any],
    where: str,
) -> Sequence[Any] | None:
    """Lowers to permutes or lax's collective if the environment or the plan's entry says so; else returns None."""
    _, _, positions = ranks_of(lax, context, bucket, params)
    avals: Sequence[Any] = context.avals_in
    size = max(map(len, positions)), *extent([(aval.shape, aval.dtype) for aval in avals])
    if choice.leaves_to_lax(choice.SizedCall(COLLECTIVES[lax.name].kind, *size, plan)):
        run: Any = partial(_run_lax, lax, params)
    else:
        run = permutes.find(lax, context, plan, bucket, params, where="asked")
    return None if run is None else record(lax, context, operands, plan, bucket, params, where, run)


def _run_lax(
    lax: Primitive, params: dict[str, Any], context: mlir.LoweringRuleContext, operands: Sequence[Any]
) -> Sequence[Any]:
    return as_lax(lax, context, *operands, **params)
