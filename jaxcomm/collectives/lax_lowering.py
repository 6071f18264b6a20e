"""Lowers a collective to lax's own collective, and logs this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxcomm import jax_compat
from jaxcomm.collectives.primitive import OUR_PARAMS
from jaxcomm.log import say_once


def has_devices(context: mlir.LoweringRuleContext, collective: str) -> bool:
    """Whether the step is lowered for known devices; if not, logs once that lax's collective runs."""
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


def lower_to_lax(
    lax: Primitive, context: mlir.LoweringRuleContext, *operands: Any, where: str, **params: Any
) -> Sequence[Any]:
    del where
    say_that_lax_runs(context)
    return as_lax(lax, context, *operands, **params)


def as_lax(lax: Primitive, context: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Sequence[Any]:
    """Lowers to lax's primitive, without the parameters that only our primitive has."""
    if params.get("drop") is not None:
        sums = as_lax(lax, without_first(context), *operands[1:], **{**params, "drop": None})
        return without_losses(context, operands, sums)
    its = {name: value for name, value in params.items() if name not in OUR_PARAMS}
    results: Sequence[Any] = mlir.lower_fun(lambda *xs: [lax.bind(x, **its) for x in xs], multiple_results=True)(
        context, *operands
    )
    return results


def without_first(context: mlir.LoweringRuleContext) -> mlir.LoweringRuleContext:
    """The context of a sum with a drop, without the first operand, which marks segments that must arrive."""
    rest: mlir.LoweringRuleContext = context.replace(avals_in=context.avals_in[1:], avals_out=context.avals_out[1:])
    return rest


def without_losses(context: mlir.LoweringRuleContext, operands: Sequence[Any], sums: Sequence[Any]) -> Sequence[Any]:
    """The results of a sum with a drop if nothing was lost: the first result marks no segment as lost."""
    first = context.replace(avals_in=context.avals_in[:1], avals_out=context.avals_out[:1])
    return [*mlir.lower_fun(jnp.zeros_like, multiple_results=False)(first, operands[0]), *sums]


def say_that_lax_runs(context: mlir.LoweringRuleContext) -> None:
    """Logs once that there is no core for the platform."""
    platforms = ", ".join(context.module_context.platforms)
    say_once(f"jaxcomm has no core for {platforms} yet: its collectives run as jax.lax's there, without a plan.")
