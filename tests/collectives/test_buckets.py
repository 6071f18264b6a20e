"""A plan's buckets, averaged after or inside the backward pass: the same averages as one call of all gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxcomm
from jaxcomm import ffi, log, train
from jaxcomm.errors import PlanError
from jaxcomm.plan import Plan
from tests.collectives.lax_cases import MESH, MESH_2D, P, both_modes, sharded
from tests.collectives.plans import SPECS, make, step_plan

LAYERS, WIDTH = 4, 24
random = np.random.default_rng(3)
X = random.standard_normal((8, 4, WIDTH)).astype(np.float32)
PARAMS = {
    f"layer{i}": {
        "w": jnp.asarray(random.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5, jnp.float32),
        "b": jnp.zeros(WIDTH, jnp.float32),
    }
    for i in range(LAYERS)
}
DIRECT = make((0, None, SPECS["direct"]))  # adds in the order of the ranks, everywhere in the buffer
PLAN = step_plan(PARAMS, [3, 4, 1])
Loss = Callable[[Any, Any], Any]


def layer(x: Any, params: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"])


def loss(params: Any, x: Any) -> Any:
    for i in range(LAYERS):
        x = layer(x, params[f"layer{i}"])
    return jnp.mean(jnp.square(x.astype(jnp.float32)))


def rematerialised(params: Any, x: Any) -> Any:
    return jax.checkpoint(loss)(params, x)


def branching(params: Any, x: Any) -> Any:
    return lax.cond(jnp.sum(x) > 0, loss, lambda params, x: loss(params, 2 * x), params, x)


def accumulated(params: Any, x: Any) -> Any:
    """The mean loss of micro-batches in a loop. The gradients are averaged once, after the loop."""
    parts = x.reshape(2, -1, WIDTH)
    return lax.scan(lambda total, part: (total + loss(params, part) / 2, None), jnp.zeros_like(x, shape=()), parts)[0]


def stacked(params: Any, x: Any) -> Any:
    return jnp.mean(jnp.square(lax.scan(lambda x, params: (layer(x, params), None), x, params)[0]))


STACKED = jax.tree.map(lambda *leaves: jnp.stack(leaves), *PARAMS.values())


pytestmark = pytest.mark.usefixtures("no_plan")


def local(params: Any, vma: bool) -> Any:
    """Parameters whose gradients differ by rank. With check_vma, `jax.grad` sums the gradients of shared parameters."""
    return jax.tree.map(lambda leaf: lax.pcast(leaf, "d", to="varying"), params) if vma else params


def one_call(loss: Loss, plan: Plan, vma: bool, params: Any, x: Any) -> Any:
    return jaxcomm.pmean(jax.grad(loss)(local(params, vma), x), "d", plan=plan)


def after(loss: Loss, plan: Plan, vma: bool, params: Any, x: Any) -> Any:
    return train.pmean_buckets(jax.grad(loss)(local(params, vma), x), "d", plan=plan)


def inside(loss: Loss, plan: Plan, vma: bool, params: Any, x: Any) -> Any:
    del vma
    return jax.grad(lambda params, x: loss(train.pmean_in_backward(params, "d", plan=plan), x))(params, x)


def run(how: Callable[..., Any], loss: Loss, plan: Plan, params: Any = PARAMS, vma: bool = False) -> Any:
    step = jax.jit(sharded(partial(how, loss, plan, vma), (P(), P("d")), P(), vma))
    return jax.block_until_ready(step(params, X.reshape(-1, WIDTH)))


@functools.cache
def by_one_call(loss: Loss, vma: bool = False) -> Any:
    return run(one_call, loss, DIRECT, STACKED if loss is stacked else PARAMS, vma)


def names_seen() -> list[str]:
    return sorted(site["name"] for site in ffi.sites() if site["calls"])


@both_modes
@pytest.mark.parametrize("how", [after, inside])
@pytest.mark.parametrize("loss", [loss, rematerialised, branching, accumulated])
def test_same_bits_as_one_call_with_one_call_per_bucket(how: Callable[..., Any], loss: Loss, vma: bool) -> None:
    expected = by_one_call(loss, vma)
    ffi.reset_stats()
    results = run(how, loss, PLAN, vma=vma)
    assert names_seen() == [f"psum bucket {i} of 3" for i in (1, 2, 3)]
    jax.tree.map(np.testing.assert_array_equal, results, expected)
    for leaf in jax.tree.leaves(results):
        assert len({np.asarray(shard.data).tobytes() for shard in leaf.addressable_shards}) == 1


@both_modes
@pytest.mark.parametrize("how", [after, inside])
def test_layers_in_a_loop(how: Callable[..., Any], vma: bool) -> None:
    plan = step_plan(STACKED, [1, 1])
    expected = by_one_call(stacked, vma)
    jax.tree.map(np.testing.assert_array_equal, run(how, stacked, plan, STACKED, vma), expected)


@both_modes
def test_a_layer_of_the_loop_at_a_time(vma: bool) -> None:
    """If the loop's body calls `pmean_in_backward`, the backward loop averages one layer's gradients per iteration."""
    plan = step_plan(PARAMS["layer0"], [2])

    def sliced(params: Any, x: Any) -> Any:
        def body(x: Any, params: Any) -> tuple[Any, None]:
            return layer(x, train.pmean_in_backward(params, "d", plan=plan)), None

        return jnp.mean(jnp.square(lax.scan(body, x, params)[0]))

    step = jax.jit(sharded(jax.grad(sliced), (P(), P("d")), P(), vma))
    results = jax.block_until_ready(step(STACKED, X.reshape(-1, WIDTH)))
    assert [site["calls"] for site in ffi.sites() if site["calls"]] == [LAYERS]
    expected = by_one_call(stacked, vma)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-8), results, expected)


@pytest.mark.parametrize("how", [after, inside])
def test_half_precision_and_mixed_types(how: Callable[..., Any]) -> None:
    mixed = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16) if leaf.ndim == 2 else leaf, PARAMS)
    results = run(how, loss, step_plan(mixed, [3, 4, 1]), mixed)
    assert jax.tree.map(lambda leaf: leaf.dtype, results) == jax.tree.map(lambda leaf: leaf.dtype, mixed)
    jax.tree.map(np.testing.assert_array_equal, results, run(one_call, loss, DIRECT, mixed))


@pytest.mark.parametrize("how", [after, inside])
def test_each_bucket_runs_the_schedule_of_its_bytes(how: Callable[..., Any]) -> None:
    one = 4 * WIDTH * (WIDTH + 1)
    plan = step_plan(PARAMS, [2, 6], (0, one, SPECS["direct"]), (one + 1, None, SPECS["straggler"]))
    assert [bucket.schedule.kind for bucket in plan.step.planned] == ["direct", "straggler"]
    expected = by_one_call(loss)
    results = run(how, loss, plan)
    assert {(site["bytes"], site["plan"]) for site in ffi.sites() if site["calls"] and "bucket" in site["name"]} == {
        (one, plan.hash[:8]),
        (3 * one, plan.hash[:8]),
    }
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-8), results, expected)


def test_the_active_plan_counts() -> None:
    with jaxcomm.use_plan(PLAN):
        results = run(after, loss, None)
    jax.tree.map(np.testing.assert_array_equal, results, run(inside, loss, PLAN))


def test_gradients_that_jax_has_summed_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    def summed(loss: Loss, plan: Plan, vma: bool, params: Any, x: Any) -> Any:
        return train.pmean_buckets(jax.grad(loss)(params, x), "d", plan=plan)

    log.say_once.cache_clear()
    for how in (after, summed):
        run(how, loss, PLAN, vma=True)
    logged = [record.getMessage() for record in caplog.records if record.name == "jaxcomm"]
    assert len(logged) == 1
    assert "jaxcomm.train.pmean_buckets over 'd': all 8 ranks have the same operand" in logged[0]


def test_a_plan_for_other_ranks_is_refused() -> None:
    step = sharded(lambda g: train.pmean_buckets(g, "a", plan=PLAN), P(), P(), False, MESH_2D)
    with pytest.raises(PlanError, match=r"pmean_buckets over 'a': plan .* is for 8 ranks; this call has 4"):
        jax.jit(step)(PARAMS)


def test_parameters_of_each_rank() -> None:
    """With check_vma, the gradients of parameters that vary over the ranks also vary over the ranks."""
    many = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (8, *leaf.shape)), PARAMS)

    def step(params: Any, x: Any) -> Any:
        params = jax.tree.map(lambda leaf: leaf[0], params)
        return jax.tree.map(lambda leaf: leaf[None], inside(loss, PLAN, True, params, x))

    results = jax.jit(sharded(step, (P("d"), P("d")), P("d"), True))(many, X.reshape(-1, WIDTH))
    for ours, theirs in zip(jax.tree.leaves(results), jax.tree.leaves(by_one_call(loss)), strict=True):
        np.testing.assert_array_equal(ours, np.broadcast_to(theirs, ours.shape))


def test_empty_arrays_and_several_axes() -> None:
    tree = PARAMS | {"none": jnp.zeros((0, 3))}
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def step(params: Any, x: Any) -> Any:
        return train.pmean_buckets(jax.grad(loss)(params, x), ("a", "b"), plan=PLAN)

    results = jax.jit(sharded(step, (P(), P(("a", "b"))), P(), False, mesh))(tree, X.reshape(-1, WIDTH))
    assert results.pop("none").shape == (0, 3)
    jax.tree.map(np.testing.assert_array_equal, results, by_one_call(loss))


def test_donated_parameters() -> None:
    def step(params: Any, x: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, inside(loss, PLAN, False, params, x))

    mapped = sharded(step, (P(), P("d")), P(), False)
    placed = jax.device_put(jax.tree.map(np.array, PARAMS), jax.sharding.NamedSharding(MESH, P()))
    expected = jax.jit(mapped)(placed, X.reshape(-1, WIDTH))
    results = jax.jit(mapped, donate_argnums=0)(placed, X.reshape(-1, WIDTH))
    jax.tree.map(np.testing.assert_array_equal, results, expected)


@pytest.mark.parametrize(
    ("plan", "params", "says"),
    [
        (None, PARAMS, "there is no plan"),
        (DIRECT, PARAMS, f"plan {DIRECT.hash[:8]} has no step"),
        (
            PLAN,
            {"params": PARAMS},
            r"gradient 'layer3/w' of plan \w{8} is not in this tree, which has 'params/layer0/b'",
        ),
        (
            PLAN,
            PARAMS | {"head": jnp.ones(3)},
            r"gradient 'head' is not in the step of plan \w{8}, which has 'layer3/w'",
        ),
        (PLAN, PARAMS | {"layer1": {"w": jnp.ones(5), "b": jnp.ones(5)}}, "'layer1/b' has 20 bytes, but 96 in plan"),
        (step_plan([{"a/b": jnp.ones(3)}, {"a": {"b": jnp.ones(3)}}], [2]), PARAMS, "gradient '1/a/b' of plan"),
    ],
)
@pytest.mark.parametrize("function", [train.pmean_buckets, train.pmean_in_backward])
def test_mistakes(function: Callable[..., Any], plan: Plan | None, params: Any, says: str) -> None:
    with pytest.raises(PlanError, match=f"^{function.__name__}: .*{says}") as error:
        jax.eval_shape(sharded(lambda params: function(params, "d", plan=plan), P(), P(), False), params)
    assert "\n  Cure: " in str(error.value)


def test_two_gradients_of_one_name() -> None:
    tree = {"a/b": jnp.ones(3), "a": {"b": jnp.ones(3)}}
    with pytest.raises(ValueError, match="two gradients are called 'a/b'"):
        run(lambda *_: train.pmean_buckets(tree, "d", plan=PLAN), loss, PLAN)
    plan = step_plan(tree, [2])
    with pytest.raises(PlanError, match="has two gradients of one name"):
        run(lambda *_: train.pmean_buckets({"a/b": jnp.ones(3)}, "d", plan=plan), loss, plan)


def test_outside_of_the_mesh() -> None:
    with pytest.raises(NameError, match=r"jaxcomm\.train\.pmean_buckets: there is no axis 'd' here"):
        train.pmean_buckets(PARAMS, "d", plan=PLAN)


def test_a_missing_rank_is_named_with_its_bucket() -> None:
    """The error names the waiting bucket."""

    def step(params: Any, x: Any) -> Any:
        grads = jax.grad(loss)(params, x)
        late = jnp.where(lax.axis_index("d") == 5, 3.0, 0.0)
        grads["layer0"] = ffi.delay(grads["layer0"], late)
        return train.pmean_buckets(grads, "d", plan=PLAN)

    step = jax.jit(sharded(step, (P(), P("d")), P(), False))
    ffi.set_deadline(0.5)
    try:
        with pytest.raises(Exception, match=r"psum bucket \d of 3 #\d+ over 'd'.*rank 5 of 8 has not arrived"):
            jax.block_until_ready(step(PARAMS, X.reshape(-1, WIDTH)))
    finally:
        ffi.set_deadline(60.0)
