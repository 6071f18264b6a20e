"""How far ranks that train parameters of their own are apart."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxcomm.collectives.api import pmean
from jaxcomm.collectives.axes import AxisName


def consensus_distance(params: Any, axis_name: AxisName) -> jax.Array:
    """How far the ranks' parameters are apart: the root mean square over ranks of a rank's distance to their mean.

    It is computed in float32, or wider where the parameters are.
    """
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), params)
    apart = jax.tree.map(lambda leaf, middle: jnp.sum(jnp.square(jnp.abs(leaf - middle))), wide, pmean(wide, axis_name))
    distance: jax.Array = jnp.sqrt(pmean(sum(jax.tree.leaves(apart)), axis_name))
    return distance
