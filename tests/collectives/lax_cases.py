"""Runs a function with jax.lax's collectives and with ours, and compares the results and errors."""

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
    """Asserts that `case(jax.lax)` and `case(jaxcomm)` raise the same type of error, or return equal results.

    Equal results have the same tree, shapes, types and weak types. On each device integers are equal, and floats are
    equal within rounding. If all devices have the same bits with lax, they must have the same bits with jaxcomm.
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
    pairs = list(zip(shards(ours), shards(theirs), strict=True))
    for mine, other in pairs:
        np.testing.assert_allclose(mine.astype(wide), other.astype(wide), rtol=tolerance, atol=tolerance)
    if len({other.tobytes() for _, other in pairs}) == 1:
        assert len({mine.tobytes() for mine, _ in pairs}) == 1


def shards(value: Any) -> list[np.ndarray[Any, Any]]:
    """The buffer of each device."""
    if isinstance(value, jax.Array):
        return [np.asarray(shard.data) for shard in value.addressable_shards]
    return [np.asarray(value)]
