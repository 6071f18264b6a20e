"""How far ranks that train parameters of their own are apart."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxcomm.collectives.api import AxisName, pmean


def consensus_distance(params: Any, axis_name: AxisName) -> jax.Array:
    """How far the ranks' parameters are apart: the root mean square over ranks of a rank's distance to their mean."""
    mean = pmean(params, axis_name)
    squares = jax.tree.map(lambda leaf, middle: jnp.sum(jnp.square(leaf - middle)), params, mean)
    distance: jax.Array = jnp.sqrt(pmean(sum(jax.tree.leaves(squares)), axis_name))
    return distance
