"""An opt-in for layers that call jax.lax themselves, such as Flax's BatchNorm: their sums run on the core too."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxcomm import jax_compat
from jaxcomm.collectives import communicator
from jaxcomm.collectives.lax_lowering import has_devices
from jaxcomm.collectives.lowering import lower_to_core
from jaxcomm.collectives.primitive import COLLECTIVES, PRIMITIVES, bind_ours
from jaxcomm.jax_compat.contexts import replacing_lax


@contextlib.contextmanager
def replace_lax() -> Iterator[None]:
    """Inside it, `jax.lax.psum` and `pmean` follow the active plan, for steps that are compiled inside it.

    A jitted step is compiled once for inside and once for outside. Each array is a call of its own, as in lax.
    Calls that jaxcomm cannot carry (see `jaxcomm.psum`) stay lax's; on platforms but CPUs and GPUs all do.
    """
    _register()
    with replacing_lax(True):
        yield


def replace_types(names: Collection[str]) -> None:
    """Has the core do lax's collectives of these element types, in all steps that are compiled for CPUs.

    Args:
      names: of types that XLA cannot hand to the library that carries its collectives.
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
    plan, where = communicator.plan_hash(None, axes), jax_compat.source_line(context)
    with replacing_lax(False):  # the collectives that ours is lowered to are lax's
        if collective.kind == "all_reduce" and platforms == ("cpu",):
            return lower_to_core(lax, context, operand, plan=plan, where=where, **params)
        bind = partial(bind_ours, lax, {"plan": plan, "bucket": "", "drop": None}, params)
        results = mlir.lower_fun(lambda x: bind([x]), multiple_results=True)(context, operand)
    return results
