"""Makes the core also run the sums of layers that call jax.lax themselves, such as Flax's BatchNorm, on request."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxcomm import jax_compat
from jaxcomm.collectives import active_plan
from jaxcomm.collectives.lax_lowering import has_devices
from jaxcomm.collectives.lowering import lower_to_core
from jaxcomm.collectives.primitive import COLLECTIVES, PRIMITIVES, bind_ours
from jaxcomm.jax_compat.contexts import replacing_lax


@contextlib.contextmanager
def replace_lax() -> Iterator[None]:
    """Makes `jax.lax.psum` and `pmean` follow the active plan in steps that are compiled inside the `with` statement.

    A jitted step is compiled once inside the statement and once outside. Each array is a call of its own, as in lax.
    `jax.lax` still runs the calls that jaxcomm cannot run (see `jaxcomm.psum`). On platforms other than CPUs and GPUs
    it runs all calls.
    """
    _register()
    with replacing_lax(True):
        yield


def replace_types(names: Collection[str]) -> None:
    """Makes the core run lax's collectives of these element types, in all steps that are compiled for CPUs.

    Args:
      names: the element types that XLA cannot pass to the library that runs its collectives.
    """
    _types.update(names)
    _register()


_types: set[str] = set()


@functools.cache
def _register() -> None:
    for lax in jax_compat.lax_collectives():
        if lax in PRIMITIVES:
            jax_compat.require_devices(lax)
            rule = partial(_lower, lax, jax_compat.lowering_of(lax))
            mlir.register_lowering(lax, rule, cacheable=False)


def _lower(
    lax: Primitive, rule: Callable[..., Any], context: mlir.LoweringRuleContext, operand: Any, **params: Any
) -> Sequence[Any]:
    aval: Any = context.avals_in[0]
    collective = COLLECTIVES[lax.name]
    axes = params["axes"] if collective.kind == "all_reduce" else params["axis_name"]
    axes = axes if isinstance(axes, tuple) else (axes,)
    platforms = tuple(context.module_context.platforms)
    ours = (
        (
            (replacing_lax.value and collective.name == "psum" and platforms in (("cpu",), ("cuda",)))
            or (aval.dtype.name in _types and platforms == ("cpu",))
        )
        and aval.dtype.name in collective.dtypes
        and not any(isinstance(axis, int) for axis in axes)
        and has_devices(context, collective.name)
    )
    results: Sequence[Any]
    if not ours:
        results = rule(context, operand, **params)
        return results
    plan, where = active_plan.plan_hash(None, axes), jax_compat.source_line(context)
    with replacing_lax(False):  # our primitive may itself be lowered to lax's primitive
        if collective.kind == "all_reduce" and platforms == ("cpu",):
            return lower_to_core(lax, context, operand, plan=plan, where=where, **params)
        bind = partial(bind_ours, lax, {"plan": plan, "bucket": "", "drop": None}, params)
        results = mlir.lower_fun(lambda x: bind([x]), multiple_results=True)(context, operand)
    return results
