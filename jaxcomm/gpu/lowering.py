"""Lowers a collective over GPUs to the fused kernel in a process, to NCCL between processes, or to XLA's collectives.

The fused kernel and our NCCL calls compute sums, maxima and minima, and are used only if `jaxcomm check` has shown that
they work on this machine. Otherwise XLA's permutes run the calls for which a plan has a schedule, and lax's collectives
run all other calls.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxcomm import ffi, jax_compat
from jaxcomm.collectives import active_plan, choice
from jaxcomm.collectives.lax_lowering import as_lax
from jaxcomm.collectives.permutes import lowering as permutes
from jaxcomm.collectives.primitive import COLLECTIVES
from jaxcomm.collectives.ranks import devices_at, ranks_of
from jaxcomm.collectives.recorded import Run, record
from jaxcomm.collectives.request import Device, Groups, Request, extent
from jaxcomm.distributed.connect.records import hardware_number
from jaxcomm.distributed.forks import run_at_exit
from jaxcomm.errors import JaxcommError
from jaxcomm.gpu import certificate, core, fused, nccl
from jaxcomm.log import say_once


def lower(
    lax: Primitive,
    context: mlir.LoweringRuleContext,
    *operands: Any,
    plan: str,
    bucket: str,
    where: str,
    **params: Any,
) -> Sequence[Any]:
    """The GPU lowering rule of the jaxcomm primitive that replaces the primitive `lax`."""
    collective = COLLECTIVES[lax.name]
    name, axes, positions = ranks_of(lax, context, bucket, params)

    def recorded(run: Run) -> Sequence[Any]:
        return record(lax, context, operands, plan, bucket, params, where, run)

    def by_lax() -> Sequence[Any]:
        return recorded(lambda context, operands: as_lax(lax, context, *operands, **params))

    def by_xla(why_lax: str) -> Sequence[Any]:
        found = permutes.find(lax, context, plan, bucket, params, where="planned")
        if found is not None:
            return recorded(found)
        say_once(why_lax)
        return by_lax()

    if max(map(len, positions)) == 1:
        return operands
    if collective.kind != "all_reduce":
        return by_xla(f"jaxcomm has no {collective.name} for GPUs: it runs as jax.lax's, without a plan.")
    scope: Any = context.module_context.axis_context
    devices = devices_at(scope.mesh, positions)
    members = [{device.process_index for device in group} for group in devices]
    use = "process" if all(len(group) == 1 for group in members) else "nccl"
    avals: Sequence[Any] = context.avals_in
    nbytes, dtype = extent([(aval.shape, aval.dtype) for aval in avals])
    ranks = max(map(len, positions))
    sized = choice.SizedCall("all_reduce", ranks, nbytes, dtype, plan, f"{name} over '{axes}'")
    if choice.uses_nccl(sized):
        return by_lax()
    if use == "nccl" and choice.choose_schedule(sized)[1] == "direct":
        return by_lax()
    if reason := _why_not(use, sorted(set().union(*members))):
        return by_xla(
            f"jaxcomm.{collective.name} over GPUs runs as jax.lax's, without a plan: {reason}. "
            "`jaxcomm check` shows on this machine whether ours works, and turns it on."
        )
    active_plan.start()
    start()
    automatic = sorted(
        str(axis) for axis, size in scope.mesh.shape.items() if size > 1 and axis not in scope.manual_axes
    )
    if automatic:
        return by_xla(
            f"jaxcomm.{collective.name} over GPUs runs as jax.lax's, without a plan: XLA still partitions over "
            f"{', '.join(automatic)}."
        )
    request = Request(name, collective.kind, collective.reduction, axes, plan, gpus(devices))
    if use == "nccl":
        return recorded(lambda context, operands: nccl.lower(context, operands, request))
    config = _attributes(request, nbytes, dtype)
    call = mlir.lower_fun(functools.partial(_reduce, config), multiple_results=True)
    results: Sequence[Any] = call(context, *operands)
    return results


@functools.cache
def start() -> None:
    """Registers the GPU calls with XLA and with `jaxcomm.ffi`, once. Does nothing if JAX has no GPU."""
    if core.jax_has_it():
        fused.register()
        nccl.register()
        ffi.add_backend(fused)
        run_at_exit(check_at_exit)


def register_segments() -> None:
    """Registers the custom calls of `jaxcomm.ffi.segments` for GPUs, once, if jaxcomm was built with CUDA."""
    if core.is_built():
        core.register()


def register_arrivals() -> bool:
    """Registers the custom calls that record arrivals, once. Returns False if jaxcomm was built without CUDA."""
    if core.is_built():
        core.register_arrivals()
    return core.is_built()


def check_at_exit() -> None:
    """Logs the error of a failed call if no caller has received this error."""
    try:
        fused.check()
    except JaxcommError as error:
        logging.getLogger("jaxcomm").error("%s", error)


def gpus(groups: Sequence[Sequence[Any]]) -> Groups:
    """The GPUs of each group: for each GPU its process and CUDA's device id.

    Raises:
      JaxcommError: a process has not published the device ids of its GPUs.
    """
    return tuple(tuple(Device(device.process_index, hardware_number(device)) for device in group) for group in groups)


def _why_not(use: str, members: Sequence[int]) -> str | None:
    if not core.is_built():
        return "jaxcomm was built without CUDA"
    if len(members) > 1 and not jax_compat.spans_processes():
        return "the step is compiled ahead, for processes of another job"
    return certificate.why_not_in(use, members)


def _attributes(request: Request, nbytes: int, dtype: str | None) -> dict[str, Any]:
    """The attributes of the fused kernel's custom call, equal in all processes."""
    choices = {
        ranks: choice.choose(choice.SizedCall(request.kind, ranks, nbytes, dtype, request.plan, request.call))
        for ranks in {*request.sizes} - {1}
    }
    return {
        "name": request.name,
        "axes": request.axes,
        "programs": "".join(f"{choices[ranks].schedules[0] if ranks > 1 else ''}," for ranks in request.sizes),
        "kind": request.kind,
        "reduction": request.reduction,
        "plan": choices[max(request.sizes)].plan,
        "groups": np.array([fused.device_key(device) for group in request.groups for device in group], np.int32),
        "sizes": np.array(request.sizes, np.int32),
    }


def _reduce(config: dict[str, Any], *leaves: jax.Array) -> list[jax.Array]:
    """Makes one call, and thus one kernel, for each element type. Concatenates the leaves of a type."""
    results: list[Any] = [None] * len(leaves)
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        indices = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        operands = [leaves[i] for i in indices]
        flat = operands[0] if len(operands) == 1 else jnp.concatenate([operand.ravel() for operand in operands])
        call: Any = jax.ffi.ffi_call(ffi.TARGET, jax.typeof(flat), input_output_aliases={0: 0})
        flat, begin = call(flat, **config), 0
        for i, operand in zip(indices, operands, strict=True):
            size = math.prod(operand.shape)
            results[i] = flat if len(operands) == 1 else flat[begin : begin + size].reshape(operand.shape)
            begin += size
    return results
