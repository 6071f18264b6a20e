"""Runs the same function with jax.lax's collectives and with ours, and compares all that a user can see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

import jaxcomm

P = PartitionSpec
both_modes = pytest.mark.parametrize("vma", [True, False], ids=["check_vma", "no check_vma"])
MESH = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
MESH_2D = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)

_generator = np.random.default_rng(0)
X = _generator.standard_normal((8, 6)).astype(np.float32)
W = _generator.standard_normal((6, 3)).astype(np.float32)
TOLERANCE = {
    "bfloat16": 3e-2,
    "float16": 3e-3,
    "float32": 1e-5,
    "complex64": 1e-5,
    "float64": 1e-12,
    "complex128": 1e-12,
}


def sharded(function: Callable[..., Any], in_specs: Any, out_specs: Any, vma: bool, mesh: Mesh = MESH) -> Any:
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=vma)


def compare(case: Callable[[Any], Any]) -> None:
    """Asserts that `case(jax.lax)` and `case(jaxcomm)` raise the same type of error, or return the same.

    The same means: trees, shapes, types and weak types; integers exactly, floats within rounding; and where the result
    is on every device, ours has the same bits on all of them.
    """
    with jax.enable_x64(True):
        try:
            expected = case(jax.lax)
        except Exception as error:
            with pytest.raises(type(error)):
                case(jaxcomm)
            return
        results = case(jaxcomm)
        assert jax.tree.structure(results) == jax.tree.structure(expected)
        for ours, theirs in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
            compare_leaf(ours, theirs)


def compare_leaf(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    assert jax.typeof(ours) == jax.typeof(theirs)
    dtype = jax.typeof(theirs).dtype.name
    wide = np.complex128 if dtype.startswith("complex") else np.float64
    tolerance = TOLERANCE.get(dtype, 0)
    np.testing.assert_allclose(
        np.asarray(ours).astype(wide), np.asarray(theirs).astype(wide), rtol=tolerance, atol=tolerance
    )
    if isinstance(ours, jax.Array) and ours.sharding.is_fully_replicated:
        assert len({np.asarray(shard.data).tobytes() for shard in ours.addressable_shards}) == 1
