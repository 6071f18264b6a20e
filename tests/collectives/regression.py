"""A small regression, for tests that compare its gradients with jax's gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding

from tests.collectives.lax_cases import P

KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
SHAPES = {"data": (8,), "data and model": (4, 2)}
ROWS, FEATURES, UNITS = 32, 6, 8

random = np.random.default_rng(7)
PARAMS = {
    "first": random.standard_normal((FEATURES, UNITS)).astype(np.float32),
    "second": random.standard_normal((UNITS,)).astype(np.float32),
}
X = random.standard_normal((ROWS, FEATURES)).astype(np.float32)
Y = np.sin(X.sum(1))


def make_mesh(shape: tuple[int, ...], kind: AxisType) -> jax.sharding.Mesh:
    return jax.make_mesh(shape, ("data", "model")[: len(shape)], axis_types=(kind,) * len(shape))


def put(mesh: Any, value: Any, *spec: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(mesh, P(*spec))), value)


def placed(mesh: Any) -> dict[str, Any]:
    """The parameters on a mesh; the units are sharded over the axis "model" if the mesh has it."""
    model = "model" if "model" in mesh.axis_names else None
    return {"first": put(mesh, PARAMS["first"], None, model), "second": put(mesh, PARAMS["second"], model)}


def outputs(params: Any, x: Any) -> Any:
    return jnp.sum(jnp.tanh(x @ params["first"]) * params["second"], axis=1)


def loss(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((outputs(params, x) - y) ** 2)


def equal(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (mine.shape, mine.dtype) == (other.shape, other.dtype)
        if mine.dtype != jax.dtypes.float0:
            wide = [np.asarray(leaf).astype(np.complex128) for leaf in (mine, other)]
            np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)


def with_outputs(params: Any, x: Any, y: Any) -> Any:
    found = outputs(params, x)
    return jnp.mean((found - y) ** 2), {"outputs": found, "right": found > y, "error": jnp.mean(abs(found - y))}


def with_settings(params: Any, batch: Any, power: int, name: str, *, scale: Any) -> Any:
    assert (power, name) == (2, "mean")
    return scale * jnp.mean((outputs(params, batch["x"]) - batch["y"]) ** power)
