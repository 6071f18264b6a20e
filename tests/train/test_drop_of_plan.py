"""The drops of a plan in a training: the model's layers, each layer's share by name, and front layers first."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcomm
from jaxcomm import planner, profile
from jaxcomm.errors import PlanError, ProfileError
from jaxcomm.profile import Layer, Link, Profile, Provenance
from jaxcomm.train import Drop, layers
from tests.train.gradient_cases import RANKS, WIDTH, make_mesh, run

MEASURED = Profile(
    ranks=RANKS,
    link=Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="a test"),
    provenance=Provenance(source="a test", tool="pytest"),
)


class Network(nn.Module):
    """A model whose layers' names do not sort in the order of the forward pass."""

    @nn.compact
    def __call__(self, x):
        x = nn.Embed(16, 32, name="words")(x)
        for _ in range(11):
            x = nn.relu(nn.Dense(32)(x))
        return nn.Dense(8, name="answer")(x)


IMAGES = jnp.zeros((2, 3), jnp.int32)
NAMES = ["words/embedding", *(f"Dense_{i}/{part}" for i in range(11) for part in ("kernel", "bias"))]
NAMES += ["answer/kernel", "answer/bias"]


@pytest.fixture(scope="module")
def params():
    return jax.jit(Network().init)(jax.random.key(0), IMAGES)["params"]


def forward(params, x):
    return Network().apply({"params": params}, x)


@pytest.mark.parametrize(
    "call",
    [
        forward,
        jax.jit(forward),
        jax.checkpoint(forward),
        lambda params, x: forward(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params), x),
    ],
    ids=["plain", "jitted", "remat", "cast first"],
)
def test_layers_are_in_the_order_of_the_forward_pass(params, call):
    found = layers(call, params, IMAGES)
    assert [layer.name for layer in found] == NAMES
    assert found[1] == Layer(name="Dense_0/kernel", bytes=32 * 32 * 4)
    assert layers(call, jax.eval_shape(lambda: params), IMAGES) == found


def test_layers_of_nnx_are_named_as_its_gradients_are():
    class Pair(nnx.Module):
        def __init__(self, rngs):
            self.second, self.first = nnx.Linear(4, 2, rngs=rngs), nnx.Linear(4, 4, rngs=rngs)

        def __call__(self, x):
            return self.second(nnx.relu(self.first(x)))

    graph, params = nnx.split(Pair(nnx.Rngs(0)))
    apply = lambda params, x: nnx.merge(graph, params)(x)  # noqa: E731
    found = [layer.name for layer in layers(apply, params, jnp.ones((1, 4)))]
    paths, _ = jax.tree_util.tree_flatten_with_path(
        jax.grad(lambda params: apply(params, jnp.ones((1, 4))).sum())(params)
    )
    assert sorted(found) == sorted(jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths)
    assert [name.split("/")[0] for name in found] == ["first", "first", "second", "second"]


def test_layers_of_a_scan_come_where_it_runs_and_what_is_unused_last():
    tensors = {"z": (4, 4), "blocks": {"late": (3, 4, 4), "early": (3, 4, 4)}, "a": (4, 4), "idle": (2,)}
    params = jax.tree.map(jnp.zeros, tensors, is_leaf=lambda shape: isinstance(shape, tuple))
    params["steps"] = jnp.zeros(3, jnp.int32)

    def call(params, x):
        block = lambda x, w: (jnp.tanh(x @ w["early"]) @ w["late"], None)  # noqa: E731
        return jax.lax.scan(block, x @ params["z"], params["blocks"])[0] @ params["a"]

    found = layers(call, params, jnp.zeros((2, 4)))
    assert [layer.name for layer in found] == ["z", "blocks/early", "blocks/late", "a", "idle"]


@pytest.fixture(scope="module")
def planned(params):
    measured = profile.with_layers(MEASURED, layers(forward, params, IMAGES))
    return planner.plan(measured, drop_bound=0.5, drop_budget=0.2)


def test_training_loses_what_the_plan_says_front_layers_first(params, planned, tmp_path):
    jaxcomm.plan.save(planned, tmp_path / "plan.json")
    drop = dataclasses.replace(Drop.of(tmp_path / "plan.json"), segment_bytes=WIDTH * 4)
    assert drop == dataclasses.replace(Drop.of(planned), segment_bytes=WIDTH * 4)
    assert Drop.of(planned).segment_bytes == 4096
    random = np.random.default_rng(0)
    grads = jax.tree.map(lambda leaf: random.standard_normal((RANKS, *leaf.shape)).astype(np.float32), params)
    sums = run(make_mesh(), lambda tree: jaxcomm.psum(tree, "data", drop=drop), grads)
    lost, total = 0, 0
    for layer in planned.drops.layers:
        where, _, leaf = layer.name.rpartition("/")
        rows = np.asarray(sums[where][leaf])[0].reshape(-1, WIDTH if layer.bytes >= 64 else layer.bytes // 4)
        gone = int((~rows.any(axis=1)).sum())
        assert gone == int(Fraction(repr(layer.share)) * layer.bytes / 64)
        lost, total = lost + gone * 64, total + layer.bytes
    assert 0.15 * total < lost <= 0.2 * total
    given_up = [layer.share for layer in planned.drops.layers]
    assert given_up == sorted(given_up, reverse=True) and given_up[0] == 0.5 and given_up[-1] == 0


def test_without_a_plan_front_layers_lose_first_too(params, planned):
    found = Drop.front_first(layers(forward, params, IMAGES), 0.5, 0.2)
    assert dict(found.bounds) == pytest.approx(dict(Drop.of(planned).bounds))


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 2**34), min_size=1, max_size=20),
    bound=st.floats(0, 0.999),
    part=st.floats(0, 1),
)
def test_a_budget_is_used_up_from_the_front_and_never_exceeded(sizes, bound, part):
    named = [Layer(name=str(i), bytes=size) for i, size in enumerate(sizes)]
    shares = list(Drop.front_first(named, bound, bound * part).bounds.values())
    assert all(0 <= share <= bound for share in shares)
    lost = sum(share * size for share, size in zip(shares, sizes, strict=True))
    assert lost == pytest.approx(bound * part * sum(sizes), rel=1e-9)
    below = next((i for i, share in enumerate(shares) if share < bound), len(shares))
    assert not any(shares[below + 1 :])


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(share=st.floats(0, 0.999), size=st.integers(1, 2**20), segment=st.sampled_from([8, 64, 4096]))
def test_segments_are_counted_as_the_plan_counts_them(share, size, segment):
    x = jax.ShapeDtypeStruct((size,), jnp.float32)
    count = Drop(share, segment_bytes=segment).dropped("", x)
    assert count * segment <= Fraction(repr(share)) * size * 4 < (count + 1) * segment
    policy = planner.plan(
        profile.with_layers(MEASURED, [Layer(name="x", bytes=size * 4)]), drop_bound=share
    ).drops.model_copy(update={"segment_bytes": segment})
    assert count == policy.segments("x")


def test_a_model_that_the_plan_is_not_for_is_refused(params, planned):
    grads = jax.tree.map(lambda leaf: np.zeros((RANKS, *leaf.shape), np.float32), params)
    cut = lambda tree: jaxcomm.psum(tree, "data", drop=Drop.of(planned))  # noqa: E731
    with pytest.raises(
        ValueError, match=r"the tensor 'head/bias' has no bound; there are bounds of .*\n  Cure: plan from"
    ):
        run(make_mesh(), cut, grads | {"head": {"bias": np.zeros((RANKS, 4), np.float32)}})
    with pytest.raises(ValueError, match=r"bounds\['words/embedding'\] names no tensor here; .*\n  Cure: name it as"):
        run(make_mesh(), cut, {name: grads[name] for name in grads if name != "words"})


def test_a_plan_without_a_loss_policy_is_refused(tmp_path):
    made = planner.plan(MEASURED)
    with pytest.raises(PlanError, match=rf"the plan {made.hash[:12]} has no drop policy.\n  Cure: plan with `jaxcomm"):
        Drop.of(made)
    jaxcomm.plan.save(made, tmp_path / "plan.json")
    with pytest.raises(PlanError, match=r"plan\.json: the plan .* has no drop policy"):
        Drop.of(tmp_path / "plan.json")


def test_mistakes_in_layers_are_named():
    with pytest.raises(ProfileError, match=r'tolerance.layers\[1\].name is "a", which another has'):
        profile.with_layers(MEASURED, [Layer(name="a", bytes=1), Layer(name="a", bytes=2)])
    with pytest.raises(ValueError, match=r"budget is 0.3; it is the share of all bytes, from 0 to the bound, 0.2"):
        Drop.front_first([Layer(name="a", bytes=1)], 0.2, 0.3)


def test_with_layers_keeps_what_the_training_bears():
    measured = profile.validate(
        MEASURED.model_dump() | {"tolerance": {"layers": [{"name": "old", "bytes": 1}], "bound": 0.07}}, "test"
    )
    found = profile.with_layers(measured, [Layer(name="new", bytes=8)])
    assert found.tolerance.bound == 0.07
    assert [layer.name for layer in found.tolerance.layers] == ["new"]
