"""Programs of newcomers' own: each trains a few steps by lax or plain jit, and by jaxcomm, to the same parameters."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm import ffi
from tests.newcomer.programs_patterns import (
    AXIS,
    CLASSES,
    FEATURES,
    PROGRAMS,
    Program,
    cross_entropy,
    dense,
    descend,
    perceptron,
    perceptron_loss,
)
from tests.newcomer.programs_ways import WAYS, Way, batch_of, cases, mesh_of, placed, started

STEPS = 3
UNITS = 16
BATCH = batch_of(64, FEATURES, CLASSES)
# XLA adds up a whole batch in another order than ranks do; Adam and SAM divide by what is small at first.
TOLERANCE = {"rtol": 1e-4, "atol": 2e-6}


pytestmark = pytest.mark.usefixtures("no_plan")


def trained(library: Any, program: Program, way: Way) -> list[np.ndarray[Any, Any]]:
    """The leaves of the state after some steps; keys as their data."""
    step = way.step(library, program)
    state, batch = placed(way, started(program, UNITS), BATCH)
    scope = jaxcomm.replace_lax() if library is jaxcomm else contextlib.nullcontext()
    with scope:
        for _ in range(STEPS):
            state = jax.block_until_ready(step(state, *batch))
    leaves = jax.tree.leaves(state)
    keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    return [np.asarray(jax.random.key_data(x) if key else x) for x, key in zip(leaves, keys, strict=True)]


@functools.cache
def by_lax(name: str, way: str) -> list[np.ndarray[Any, Any]]:
    """Steps of one way that jit partitions have one result, whatever the mesh."""
    return trained(jax.lax, PROGRAMS[name], WAYS[way])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), cases(PROGRAMS))
def test_a_program_trains_alike(name: str, way: str) -> None:
    if name == "equinox":
        pytest.importorskip("equinox")
    expected = by_lax(name, way if WAYS[way].manual else "jit")
    assert not [site for site in ffi.sites() if site["calls"]]
    found = trained(jaxcomm, PROGRAMS[name], WAYS[way])
    assert [site for site in ffi.sites() if site["calls"]]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        if WAYS[way].manual:  # the ranks' sums are added in the same order
            np.testing.assert_array_equal(ours, theirs)
        else:
            np.testing.assert_allclose(ours, theirs, **TOLERANCE)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_learns(name: str) -> None:
    """Else two trainings that do nothing would be alike."""
    if name == "equinox":
        pytest.importorskip("equinox")
    before = jax.tree.leaves(started(PROGRAMS[name], UNITS))
    moved = [
        np.abs(ours - np.asarray(start)).max()
        for ours, start in zip(by_lax(name, "shard_map"), before, strict=True)
        if jnp.issubdtype(start.dtype, jnp.floating)
    ]
    assert max(moved) > 1e-2


# Programs whose ranks hold parts of the parameters: how these are split, on which mesh, and the step.
def fully_sharded(library: Any, params: Any, x: Any, y: Any) -> Any:
    """FSDP: parameters live split over the data's axis and are gathered for the loss; their gradients are scattered."""

    def gathered(params: Any) -> Any:
        return jax.tree.map(lambda leaf: library.all_gather(leaf, AXIS, tiled=True), params)

    grads = jax.grad(perceptron_loss)(gathered(params), x, y)
    ranks = jax.lax.axis_size(AXIS)
    parts = jax.tree.map(lambda leaf: library.psum_scatter(leaf, AXIS, tiled=True) / ranks, grads)
    return descend(params, parts)


def fully_sharded_in_autodiff(library: Any, params: Any, x: Any, y: Any) -> Any:
    """The same; the scatter is the gather's transpose."""

    def loss(params: Any) -> Any:
        whole = jax.tree.map(lambda leaf: library.all_gather(leaf, AXIS, tiled=True), params)
        return perceptron_loss(whole, x, y)

    ranks = jax.lax.axis_size(AXIS)
    return descend(params, jax.tree.map(lambda leaf: leaf / ranks, jax.grad(loss)(params)))


def tensor_parallel(library: Any, params: Any, x: Any, y: Any) -> Any:
    """Columns of the first kernel and rows of the second on the model's axis; what a rank has in part is summed."""
    first, second = params

    def loss(params: Any) -> Any:
        first, second = params
        return cross_entropy(library.psum(jnp.tanh(x @ first) @ second, "model"), y).mean()

    grads = jax.grad(loss)((varying(first, AXIS), varying(second, AXIS)))
    return descend(params, library.pmean(grads, AXIS))


def varying(leaf: Any, axis: str) -> Any:
    return leaf if axis in jax.typeof(leaf).manual_axis_type.varying else jax.lax.pcast(leaf, axis, to="varying")


def kernels(units: int) -> Any:
    keys = jax.random.split(jax.random.key(0), 2)
    return dense(keys[0], (FEATURES, units)), dense(keys[1], (units, CLASSES))


SPLIT: dict[str, tuple[Callable[..., Any], Callable[[int], Any], Any, Any]] = {
    "FSDP": (fully_sharded, perceptron, mesh_of(8), P(AXIS)),
    "FSDP in autodiff": (fully_sharded_in_autodiff, perceptron, mesh_of(8), P(AXIS)),
    "data x model": (tensor_parallel, kernels, mesh_of(4, 2), (P(None, "model"), P("model"))),
}


@pytest.mark.parametrize("vma", [True, False], ids=["check_vma", "no check_vma"])
@pytest.mark.parametrize("name", SPLIT)
def test_a_program_with_split_parameters_trains_alike(name: str, vma: bool) -> None:
    body, start, mesh, split = SPLIT[name]

    def trained(library: Any) -> Any:
        specs = (split, P(AXIS), P(AXIS))
        mapped = jax.shard_map(partial(body, library), mesh=mesh, in_specs=specs, out_specs=split, check_vma=vma)
        step, params = jax.jit(mapped), start(UNITS)
        for _ in range(STEPS):
            params = jax.block_until_ready(step(params, *BATCH))
        return params

    expected = trained(jax.lax)
    assert not [site for site in ffi.sites() if site["calls"]]
    found = trained(jaxcomm)
    assert [site for site in ffi.sites() if site["calls"]]
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, **TOLERANCE), found, expected)
