"""`jax.checkpoint` of steps with our collectives: policies treat ours like lax's collectives."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxcomm
from tests.collectives.lax_cases import P, both_modes, sharded

LAYERS = 3
POLICIES: dict[str, Callable[..., Any] | None] = {
    "none": None,
    "by name": lambda op, *_, **__: str(op) != "all_gather",
    "by attribute": lambda op, *_, **__: op.name not in ("all_gather", "psum_invariant"),
    "by identity": lambda op, *_, **__: op is not lax.all_gather_p,
    "by size": lambda op, *avals, **_: op is not lax.all_gather_p or avals[0].size < 10,
    "by parameter": lambda op, *_, **params: params.get("all_gather_dimension") != 1,
    "dots": jax.checkpoint_policies.dots_saveable,
    "everything": jax.checkpoint_policies.everything_saveable,
}


def fsdp(ops: Any, policy: Any, axis: int, vma: bool) -> tuple[Any, Any]:
    """The gradient function of a loss that gathers sharded weights before each use, and its arguments."""

    def predict(params: Any, x: Any) -> Any:
        for shard in params:
            gathered = {"w": ops.all_gather(shard["w"], "d", axis=axis, tiled=True)}
            gathered |= ops.all_gather({"b": shard["b"], "mask": shard["mask"]}, "d", tiled=True)
            x = jnp.where(gathered["mask"], jnp.tanh(x @ gathered["w"] + gathered["b"]), x)
        return x

    def loss(params: Any, x: Any) -> Any:
        return ops.pmean(jnp.mean(jax.checkpoint(predict, policy=policy)(params, x) ** 2), "d")

    values = np.random.default_rng(0)
    params = [
        {
            "w": values.standard_normal((16, 16)).astype(np.float32),
            "b": np.ones(16, np.float32),
            "mask": np.arange(16) % 3 > 0,
        }
        for _ in range(LAYERS)
    ]
    spec = [{"w": P("d") if axis == 0 else P(None, "d"), "b": P("d"), "mask": P("d")}] * LAYERS
    grad = jax.grad(sharded(loss, (spec, P("d")), P(), vma), allow_int=True)
    return grad, (params, values.standard_normal((8, 16)).astype(np.float32))


def gathered(step: Any, args: Any) -> int:
    """The number of arrays that a traced step gathers."""
    calls = re.findall(
        r"\b(?:jaxcomm_)?all_gather\[.*?\]((?: \w+)+)", str(jax.make_jaxpr(step)(*args)), flags=re.DOTALL
    )
    return sum(len(operands.split()) for operands in calls)


@both_modes
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("policy", POLICIES)
def test_policies_keep_and_gather_what_they_would_of_lax(policy: str, axis: int, vma: bool) -> None:
    theirs, ours = (gathered(*fsdp(ops, POLICIES[policy], axis, vma)) for ops in (lax, jaxcomm))
    assert ours == theirs >= 3 * LAYERS


@pytest.mark.parametrize("policy", ["by name", "by size"])
def test_gradients_under_a_policy(policy: str) -> None:
    def grads(ops: Any) -> Any:
        step, args = fsdp(ops, POLICIES[policy], 1, True)
        return [{"w": layer["w"], "b": layer["b"]} for layer in jax.jit(step)(*args)]

    jax.tree.map(lambda ours, theirs: np.testing.assert_allclose(ours, theirs, atol=1e-6), grads(jaxcomm), grads(lax))


def test_no_whole_weight_is_kept() -> None:
    """With the policy of JAX's tutorial on fully sharded data parallelism."""

    def kept(policy: Any) -> list[tuple[int, ...]]:
        def predict(w: Any, x: Any) -> Any:
            return jnp.tanh(x @ jaxcomm.all_gather(w, "d", axis=1, tiled=True)).sum()

        def residuals(w: Any, x: Any) -> Any:
            pull = jax.vjp(jax.checkpoint(predict, policy=policy), w, x)[1]
            return [jnp.asarray(leaf)[None] for leaf in jax.tree.leaves(pull)]

        step = sharded(residuals, (P(None, "d"), P("d")), P("d"), False)
        return [leaf.shape[1:] for leaf in jax.eval_shape(step, np.ones((16, 16)), np.ones((8, 16)))]

    assert (16, 16) in kept(POLICIES["everything"])
    assert (16, 16) not in kept(POLICIES["by name"])
