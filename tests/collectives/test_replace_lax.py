"""`replace_lax`: the sums inside library layers run on the core, only inside the context, and with the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxcomm
from jaxcomm import ffi
from tests.collectives.lax_cases import MESH_2D, P, X, sharded
from tests.collectives.plans import RING, plans_seen

pytestmark = pytest.mark.usefixtures("no_plan")


def linen_loss(x: Any) -> Any:
    """The gradients of a loss whose model has a BatchNorm that averages over the axis d."""
    layer = nn.BatchNorm(use_running_average=False, axis_name="d")
    variables = {
        "params": {"scale": jnp.ones(6), "bias": jnp.zeros(6)},
        "batch_stats": {"mean": jnp.zeros(6), "var": jnp.ones(6)},
    }

    def loss(params: Any) -> Any:
        y, state = layer.apply({**variables, "params": params}, x, mutable=["batch_stats"])
        return jnp.sum(jnp.sin(y)), state

    grads, state = jax.grad(loss, has_aux=True)(variables["params"])
    return lax.pmean(grads, "d"), lax.pmean(state, "d")


def nnx_loss(x: Any) -> Any:
    layer = nnx.BatchNorm(6, use_running_average=False, axis_name="d", rngs=nnx.Rngs(0))
    grads = nnx.grad(lambda layer: jnp.sum(jnp.sin(layer(x))))(layer)
    return lax.pmean((nnx.to_pure_dict(grads), layer.mean[...], layer.var[...]), "d")


def plain(x: Any) -> Any:
    return lax.psum(x, "d"), lax.pmean({"x": x, "n": x > 0}, "d"), lax.psum(1, "d")


@pytest.mark.parametrize(("body", "vma"), [(linen_loss, False), (nnx_loss, False), (plain, False), (plain, True)])
def test_results_and_who_computed_them(body: Callable[..., Any], vma: bool) -> None:
    step = jax.jit(sharded(body, P("d"), P(), vma))
    before = step(X)
    assert not plans_seen()
    with jaxcomm.replace_lax():
        inside = step(X)
        jax.block_until_ready(inside)
        assert plans_seen() == {"direct"}
        with jaxcomm.use_plan(RING):
            planned = jax.block_until_ready(step(X))
        assert plans_seen() == {"direct", RING.hash[:8]}
    calls = sum(site["calls"] for site in ffi.sites())
    after = jax.block_until_ready(step(X))
    assert sum(site["calls"] for site in ffi.sites()) == calls
    for result in (inside, planned, after):
        jax.tree.map(
            lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5), result, before
        )


def test_what_the_core_does_not_do_stays_with_lax() -> None:
    def body(x: Any) -> Any:
        eight = lax.psum(x.astype(jnp.float8_e4m3fn), "d").astype(jnp.float32)
        return eight, lax.psum(x, ("d", 0))

    step = jax.jit(sharded(body, P("d"), P(), False))
    before = step(X)
    with jaxcomm.replace_lax():
        jax.tree.map(np.testing.assert_array_equal, step(X), before)


def test_nested_and_partial_manual_meshes() -> None:
    def outer(x: Any) -> Any:
        inner = jax.shard_map(lambda y: lax.psum(y, "b"), in_specs=P(None, "b"), out_specs=P(), axis_names={"b"})
        return lax.psum(x, "a"), inner(lax.psum(jnp.sin(x), "a"))

    step = jax.jit(jax.shard_map(outer, mesh=MESH_2D, in_specs=P("a"), out_specs=P(), axis_names={"a"}))
    before = step(X)
    with jaxcomm.replace_lax():
        inside = jax.block_until_ready(step(X))
    assert plans_seen() == {"direct"}
    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-5), inside, before)
