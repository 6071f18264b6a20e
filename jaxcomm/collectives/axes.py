"""The axes of a call: their names as a tuple, the check that they exist, and values that vary along them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from jaxcomm import jax_compat
from jaxcomm.log import say_once

# The name of an axis, the number of a dimension of the array, or several of these.
AxisName: TypeAlias = str | int | Sequence[str | int]


def names(axis_name: AxisName) -> tuple[Any, ...]:
    """One axis or several, as a tuple."""
    return tuple(axis_name) if isinstance(axis_name, tuple | list) else (axis_name,)


def of_mesh(axis_name: AxisName) -> tuple[Any, ...]:
    """The axes that belong to the mesh. Other axes are jax.vmap's, or dimensions of the array."""
    here = frozenset(jax.sharding.get_abstract_mesh().manual_axes)
    return tuple(axis for axis in names(axis_name) if axis in here)


def check(where: str, axis_name: AxisName) -> None:
    """Raises NameError in the name of `jaxcomm.<where>` if there is no such axis here."""
    for axis in names(axis_name):
        if isinstance(axis, int):  # a dimension of the array
            continue
        try:
            lax.axis_size(axis)
        except NameError as error:
            bound = jax.sharding.get_abstract_mesh().manual_axes
            raise NameError(
                f"jaxcomm.{where}: there is no axis {axis!r} here; the mesh axes in scope are {bound}.\n"
                "  Cure: call it inside jax.shard_map over a mesh that has it, or under jax.vmap with this axis_name."
            ) from error


def say_if_alike(where: str, tree: Any, over: Sequence[Any]) -> None:
    """Warns once if all ranks of these axes already share an operand, usually a gradient that JAX has summed."""
    if not jax_compat.checks_vma() or not over or lax.axis_size(tuple(over)) == 1:
        return
    shared = any(
        isinstance(x, jax.core.Tracer)
        and jnp.issubdtype(x.dtype, jnp.inexact)
        and not jax.typeof(x).manual_axis_type.varying & {*over}
        for x in jax.tree.leaves(tree)
    )
    if shared:
        axes, ranks = over[0] if len(over) == 1 else tuple(over), lax.axis_size(tuple(over))
        say_once(
            f"jaxcomm.{where} over '{','.join(map(str, over))}': all {ranks} ranks have the same operand. With "
            "check_vma=True jax.grad sums the gradients of parameters that the ranks share by itself; a pmean of these "
            f"sums is {ranks} times the mean of the ranks' gradients.\n"
            f"  Cure: differentiate with respect to jax.lax.pcast(params, {axes!r}, to='varying')."
        )


def varying(x: jax.Array, axes: Iterable[Any]) -> jax.Array:
    """`x`, typed for check_vma as varying over these axes, even if all ranks have the same value."""
    here = frozenset(jax.sharding.get_abstract_mesh().manual_axes) - jax.typeof(x).manual_axis_type.varying
    missing = tuple(axis for axis in axes if axis in here)
    return lax.pcast(x, missing, to="varying") if missing else x


def as_varying(x: jax.Array, other: jax.Array) -> jax.Array:
    """`x`, typed as varying over the axes of `other` as well, because all operands of one call must vary alike."""
    return varying(x, sorted(jax.typeof(other).manual_axis_type.varying, key=str))
