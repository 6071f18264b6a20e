"""Gradients of Equinox models: `equinox.filter_value_and_grad` and `equinox.filter_grad`, averaged by one `pmean`.

    loss, grads = jaxcomm.equinox.value_and_grad(loss_of, "data")(model, x, y)  # inside eqx.filter_jit, or not

Needs the package equinox.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax

from jaxcomm.collectives.active_plan import PlanLike
from jaxcomm.collectives.axes import AxisName
from jaxcomm.collectives.jit.averaged import Results, averaged, positions, without_value
from jaxcomm.collectives.jit.split import like_parameter
from jaxcomm.errors import load_extra

__all__ = ["grad", "value_and_grad"]


def value_and_grad(
    fun: Callable[..., Any],
    axis_name: AxisName,
    *,
    has_aux: bool = False,
    in_specs: Any = None,
    aux_specs: Any = None,
    mesh: Any = None,
    plan: PlanLike = None,
) -> Callable[..., Any]:
    """`equinox.filter_value_and_grad`, computed by each rank on its part of the batch and averaged by `pmean`.

    The first argument is the model. All ranks share it; its floating-point arrays are differentiated.

    Args:
      fun, has_aux: as for `equinox.filter_value_and_grad`.
      axis_name, in_specs, aux_specs, mesh, plan: as for `jaxcomm.value_and_grad`.

    Returns:
      A function with the arguments of `fun` and the results of `equinox.filter_value_and_grad(fun)`.

    Raises:
      JaxcommError: Equinox is not installed, or `jaxcomm.value_and_grad` would raise this error.
      NameError, TypeError, ValueError: as for `jaxcomm.value_and_grad`.
    """
    eqx = load_extra("equinox", "jaxcomm.equinox")
    differentiated = eqx.filter_value_and_grad(fun, has_aux=has_aux)

    def differentiate(*args: Any, **kwargs: Any) -> Results:
        value, grads = differentiated(*args, **kwargs)
        value, aux = value if has_aux else (value, None)
        return Results(value, grads, aux)

    specs = {"in_specs": in_specs, "aux_specs": aux_specs, "mesh": mesh, "plan": plan}
    averages = averaged(fun, differentiate, axis_name, has_aux=has_aux, **specs)

    @wraps(fun, updated=())
    def both(*args: Any, **kwargs: Any) -> Any:
        found = averages(positions([0], args), args, kwargs)
        grads = jax.tree.map(like_parameter, found.grads, eqx.filter(args[0], eqx.is_inexact_array))
        return (found.value, found.aux) if has_aux else found.value, grads

    return both


def grad(fun: Callable[..., Any], axis_name: AxisName, *, has_aux: bool = False, **options: Any) -> Callable[..., Any]:
    """Like `value_and_grad` above, with the same arguments and errors, but for `equinox.filter_grad`."""
    both = value_and_grad(fun, axis_name, has_aux=has_aux, **options)
    return without_value(fun, both, has_aux)
