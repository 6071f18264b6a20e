"""Records the arrival and the end of a collective that the core does not run, by custom calls around it.

Each custom call takes all operands and returns them in their own memory. The collective depends on the first custom
call, and the rest of the program on the second, so XLA keeps their order. XLA removes the custom calls together with
the collective if the collective's result is unused.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxcomm import jax_compat
from jaxcomm.collectives import active_plan
from jaxcomm.collectives.choice import AUTO
from jaxcomm.collectives.partition import partitioned_module
from jaxcomm.collectives.platforms import rules_of
from jaxcomm.collectives.ranks import devices_at, ranks_of
from jaxcomm.collectives.request import Operand, extent
from jaxcomm.environment import ARRIVALS, is_on
from jaxcomm.log import say_once

Run = Callable[[mlir.LoweringRuleContext, Sequence[Any]], Sequence[Any]]


def record(
    lax: Primitive,
    context: mlir.LoweringRuleContext,
    operands: Sequence[Any],
    plan: str,
    bucket: str,
    params: Mapping[str, Any],
    where: str,
    run: Run,
) -> Sequence[Any]:
    """The results of `run(context, operands)`, recorded if JAXCOMM_ARRIVALS is on.

    Args:
      lax: lax's primitive.
      context, operands, plan, bucket, params: the arguments with which JAX lowers our counterpart's form for the core.
      where: the line of the user's code that made the call.
      run: lowers the collective.

    Raises:
      JaxcommError: JAXCOMM_ARRIVALS is neither on nor off.
    """
    platforms = tuple(context.platforms or context.module_context.platforms)
    if not is_on(ARRIVALS) or not operands or not _can_record(platforms):
        return run(context, operands)
    from jaxcomm.arrivals import records
    from jaxcomm.arrivals.start import start

    name, axes, positions = ranks_of(lax, context, bucket, params)
    scope: Any = context.module_context.axis_context
    groups = tuple(
        tuple(records.Rank(device.process_index, device.id) for device in group)
        for group in devices_at(scope.mesh, positions)
    )
    avals: Sequence[Any] = context.avals_in
    nbytes, _ = extent([(aval.shape, aval.dtype) for aval in avals])
    site = records.WatchedSite(name, axes, "lax" if plan in ("", AUTO) else plan[:8], nbytes, where, groups)
    about = site.to_json()
    key = {"key": np.int64(_key(context, about))}
    active_plan.start()
    start()
    arrived = _mark(context, operands, avals, records.ARRIVE, {**key, "about": about})
    results = run(context, arrived)
    return _mark(context, results, context.avals_out, records.END, key)


@functools.cache
def _can_record(platforms: tuple[str, ...]) -> bool:
    """Registers the custom calls for the platform. Logs once if they cannot run there."""
    from jaxcomm.arrivals import records

    if platforms == ("cpu",):
        records.add_cpus()
        return True
    if platforms == ("cuda",) and rules_of("cuda").register_arrivals():
        return True
    say_once(f"{ARRIVALS} is on, but jaxcomm has no core for {', '.join(platforms)}: no arrivals are recorded there.")
    return False


class _Numbers:
    """The number of recorded calls with the same description in a module that is being lowered."""

    def __init__(self) -> None:
        self.numbers: dict[str, itertools.count[int]] = collections.defaultdict(itertools.count)


def _key(context: mlir.LoweringRuleContext, about: str) -> int:
    """A number for the call site; it is the same in all processes and in each compilation of the same step."""
    number = next(jax_compat.module_data(context, _Numbers, _Numbers).numbers[about])
    contents = f"{jax_compat.module_types(context)} {about} {number}"
    return int.from_bytes(hashlib.sha256(contents.encode()).digest()[:8], "little", signed=True)


def _mark(
    context: mlir.LoweringRuleContext,
    operands: Sequence[Any],
    avals: Sequence[Any],
    target: str,
    config: dict[str, Any],
) -> Sequence[Any]:
    """Passes operands of these types through a custom call."""
    context = context.replace(avals_in=avals, avals_out=avals)
    scope: Any = context.module_context.axis_context
    if any(size > 1 for axis, size in scope.mesh.shape.items() if axis not in scope.manual_axes):
        # XLA would gather operands that it still partitions, so XLA gets the custom call of one shard.
        platforms = context.platforms or context.module_context.platforms
        module = partial(_shard_module, target, config, scope.mesh, platforms)
        return partitioned_module(context, operands, f"{target} {config['key']}", module, range(0))
    aliases = {i: i for i in range(len(operands))}
    results: Sequence[Any] = jax.ffi.ffi_lowering(target, operand_output_aliases=aliases)(context, *operands, **config)
    return results


def _shard_module(
    target: str, config: dict[str, Any], mesh: Any, platforms: Sequence[str], operands: Sequence[Operand]
) -> bytes:
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in operands]
    call: Any = jax.ffi.ffi_call(target, types, input_output_aliases={i: i for i in range(len(types))})
    return jax_compat.shard_module(lambda *xs: list(call(*xs, **config)), types, mesh, platforms)
