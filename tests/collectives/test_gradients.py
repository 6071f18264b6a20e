"""`value_and_grad` and `grad` compared with jax: results, all-reduces and plans."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import jaxcomm
from tests.collectives.lax_cases import P, shards
from tests.collectives.plans import RING, SPECS, make, plans_seen
from tests.collectives.regression import (
    FEATURES,
    KINDS,
    PARAMS,
    ROWS,
    SHAPES,
    UNITS,
    X,
    Y,
    equal,
    loss,
    make_mesh,
    outputs,
    placed,
    put,
    with_outputs,
    with_settings,
)

pytestmark = pytest.mark.usefixtures("no_plan")


@pytest.fixture(params=[(shape, kind) for shape in SHAPES for kind in KINDS], ids=" ".join)
def mesh(request: Any) -> Any:
    return make_mesh(SHAPES[request.param[0]], KINDS[request.param[1]])


def of_two(second: Any, x: Any, first: Any, y: Any) -> Any:
    return loss({"first": first, "second": second}, x, y)


def recurrent(params: Any, x: Any, y: Any) -> Any:
    """A scan that starts from zeros, which check_vma would refuse."""

    def step(h: Any, column: Any) -> Any:
        return jnp.tanh(h + column * params["second"].sum()), None

    h, _ = jax.lax.scan(jax.checkpoint(step), jnp.zeros(len(x)), x.T)
    return jnp.mean((h - y) ** 2) + jnp.sum(params["first"] ** 2)


def holomorphic(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((jnp.sum(x @ params["first"] * params["second"], axis=1) - y) ** 2)


def of_integers(params: Any, x: Any, y: Any) -> Any:
    return loss(params, x, y) * params["steps"]


def bfloat16(params: Any, x: Any, y: Any) -> Any:
    return loss(params, x.astype(jnp.bfloat16), y.astype(jnp.bfloat16))


class Case(NamedTuple):
    """A loss, a function (parameters, x, y) -> (args, kwargs), and options of jax's and jaxcomm's value_and_grad."""

    loss: Callable[..., Any]
    arguments: Callable[[Any, Any, Any], Any] = lambda params, x, y: ((params, x, y), {})
    options: dict[str, Any] = {}  # noqa: RUF012
    tolerance: float = 1e-5


CASES = {
    "mean": Case(loss),
    "auxiliary outputs": Case(with_outputs, options={"has_aux": True}),
    "two arguments": Case(
        of_two, lambda params, x, y: ((params["second"], x, params["first"], y), {}), {"argnums": (2, 0)}
    ),
    "the last argument": Case(lambda y, x, p: loss(p, x, y), lambda p, x, y: ((y, x, p), {}), {"argnums": -1}),
    "a scan from zeros, recomputed": Case(recurrent),
    "settings and keywords": Case(
        with_settings, lambda params, x, y: ((params, {"x": x, "y": y}, 2, "mean"), {"scale": jnp.float32(0.5)})
    ),
    "complex": Case(
        holomorphic,
        lambda params, x, y: ((jax.tree.map(lambda leaf: leaf * (1 + 0.5j), params), x, y), {}),
        {"holomorphic": True},
    ),
    "integers": Case(
        of_integers, lambda params, x, y: (({**params, "steps": jnp.int32(3)}, x, y), {}), {"allow_int": True}
    ),
    "a Python integer": Case(
        of_integers, lambda params, x, y: (({**params, "steps": 3}, x, y), {}), {"allow_int": True}
    ),
    "the place of a parameter as NumPy counts": Case(loss, options={"argnums": np.int64(0)}),
    "bfloat16": Case(
        bfloat16, lambda params, x, y: ((jax.tree.map(lambda p: p.astype(jnp.bfloat16), params), x, y), {}), {}, 3e-2
    ),
}


def jitted(case: Case, differentiate: Callable[..., Any]) -> Any:
    def run(params: Any, x: Any, y: Any) -> Any:
        args, kwargs = case.arguments(params, x, y)
        return differentiate(*args, **kwargs)

    return jax.jit(run)


@functools.cache
def by_jax(name: str) -> Any:
    case = CASES[name]
    return jitted(case, jax.value_and_grad(case.loss, **case.options))(PARAMS, X, Y)


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_jax(name: str, mesh: Any) -> None:
    case, expected = CASES[name], by_jax(name)
    ours = jaxcomm.value_and_grad(case.loss, "data", **case.options)
    values = (placed(mesh), put(mesh, X, "data"), put(mesh, Y, "data"))
    found = jitted(case, ours)(*values)
    equal(found, expected, case.tolerance)
    with jax.set_mesh(mesh):
        equal(jitted(case, jaxcomm.grad(case.loss, "data", **case.options))(*values), _grads(found, case), 0)
        args, kwargs = case.arguments(*values)
        equal(ours(*args, **kwargs), expected, case.tolerance)
    # All ranks have the same bits of the value and of the gradients.
    value, grads = found
    for leaf in jax.tree.leaves((value[0] if case.options.get("has_aux") else value, grads)):
        if isinstance(leaf, jax.Array):
            by_place: dict[str, set[bytes]] = {}
            for shard in leaf.addressable_shards:
                by_place.setdefault(str(shard.index), set()).add(np.asarray(shard.data).tobytes())
            assert {len(bits) for bits in by_place.values()} == {1}


def _grads(found: Any, case: Case) -> Any:
    (value, grads) = found
    return (grads, value[1]) if case.options.get("has_aux") else grads


def test_gradients_are_sharded_like_the_parameters(mesh: Any) -> None:
    params = placed(mesh)
    grads = jax.jit(jaxcomm.grad(loss, "data"))(params, put(mesh, X, "data"), put(mesh, Y, "data"))
    for name, leaf in params.items():
        assert grads[name].sharding.is_equivalent_to(leaf.sharding, leaf.ndim)


def test_parameters_that_a_type_splits_over_the_axis_are_gathered_and_their_gradients_split_again() -> None:
    mesh = make_mesh((4, 2), AxisType.Explicit)
    params = {
        "first": put(mesh, PARAMS["first"], None, ("model", "data")),
        "second": put(mesh, PARAMS["second"], "data"),
    }
    grads = jax.jit(jaxcomm.grad(loss, "data"))(params, put(mesh, X, "data"), put(mesh, Y, "data"))
    assert jax.tree.map(jax.typeof, grads) == jax.tree.map(jax.typeof, params)
    equal(grads, jax.grad(loss)(PARAMS, X, Y))


@pytest.mark.parametrize("has_aux", [False, True])
def test_one_all_reduce_and_none_of_xlas(has_aux: bool) -> None:
    mesh = make_mesh((8,), AxisType.Auto)
    step = jax.jit(jaxcomm.value_and_grad(with_outputs if has_aux else loss, "data", has_aux=has_aux))
    compiled = step.lower(placed(mesh), put(mesh, X, "data"), put(mesh, Y, "data")).compile().as_text()
    assert len(re.findall(r"custom-call\(.*jaxcomm_collective", compiled)) == 1
    assert not re.findall(r"all-reduce|all-gather|all-to-all|collective-permute", compiled)


def test_specs_for_what_the_rule_would_split(flat: Any) -> None:
    def of_statistics(params: Any, statistics: Any, x: Any, y: Any) -> Any:
        return loss(params, (x - statistics["mean"]).T, y), {"mean": x.mean(1, keepdims=True)}

    statistics = {"mean": np.ones((FEATURES, 1), np.float32)}
    specs = (P(), P(), P(None, "data"), P("data"))
    found = jaxcomm.value_and_grad(of_statistics, "data", has_aux=True, in_specs=specs)(PARAMS, statistics, X.T, Y)
    equal(found, jax.value_and_grad(of_statistics, has_aux=True)(PARAMS, statistics, X.T, Y))


def test_specs_of_auxiliary_outputs(flat: Any) -> None:
    def of_many(params: Any, x: Any, y: Any) -> Any:
        rank = jax.lax.axis_index("data")
        return loss(params, x, y), {"count": jnp.int32(3), "error": jnp.float32(rank), "each": rank[None]}

    specs = {"count": P(), "error": P(), "each": P("data")}
    (_, aux), _ = jaxcomm.value_and_grad(of_many, "data", has_aux=True, aux_specs=specs)(PARAMS, X, Y)
    assert (int(aux["count"]), float(aux["error"]), aux["each"].tolist()) == (3, 3.5, [*range(8)])


@pytest.mark.parametrize("order", [("data", "model"), ("model", "data")])
def test_two_axes(order: tuple[str, str]) -> None:
    mesh = make_mesh((4, 2), AxisType.Auto)
    axes = ("data", "model")
    expected = jax.value_and_grad(with_outputs, has_aux=True)(PARAMS, X, Y)
    found = jax.jit(jaxcomm.value_and_grad(with_outputs, order, has_aux=True, mesh=mesh))(PARAMS, X, Y)
    equal(found, expected)
    specs = (P(), P(axes), P(axes))  # auxiliary outputs are joined in the order of these axes, not of `order`
    found = jax.jit(jaxcomm.value_and_grad(with_outputs, order, has_aux=True, in_specs=specs, mesh=mesh))(PARAMS, X, Y)
    equal(found, expected)


def test_inside_a_shard_map_over_another_axis() -> None:
    mesh = make_mesh((4, 2), AxisType.Auto)

    def of_half(params: Any, x: Any, y: Any) -> Any:
        return jax.lax.pmean(jaxcomm.grad(loss, "data")(params, x, y), "model")

    specs = (P(), P("model"), P("model"))
    step = jax.shard_map(of_half, mesh=mesh, in_specs=specs, out_specs=P(), axis_names={"model"}, check_vma=False)
    equal(jax.jit(step)(PARAMS, X, Y), jax.grad(loss)(PARAMS, X, Y))


def test_accumulation_in_one_all_reduce_or_in_many(flat: Any) -> None:
    def of_parts(params: Any, x: Any, y: Any) -> Any:
        parts = (x.reshape(4, -1, FEATURES), y.reshape(4, -1))
        losses = jax.lax.map(lambda part: jax.checkpoint(loss)(params, *part), parts)
        return losses.mean()

    @jax.jit
    def each_summed(params: Any, x: Any, y: Any) -> Any:
        def add(total: Any, part: Any) -> Any:
            return jax.tree.map(jnp.add, total, jaxcomm.grad(loss, "data")(params, *part)), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        total, _ = jax.lax.scan(add, zeros, (x.reshape(4, -1, FEATURES), y.reshape(4, -1)))
        return jax.tree.map(lambda leaf: leaf / 4, total)

    expected = jax.grad(loss)(PARAMS, X, Y)
    equal(jax.jit(jaxcomm.grad(of_parts, "data"))(PARAMS, X, Y), expected)
    jax.block_until_ready(each_summed(PARAMS, X, Y))
    equal(each_summed(PARAMS, X, Y), expected)


def test_donated_parameters(mesh: Any) -> None:
    def step(differentiate: Any) -> Any:
        def run(params: Any, x: Any, y: Any) -> Any:
            grads = differentiate(params, x, y)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

        return jax.jit(run, donate_argnums=0)

    ours, theirs = placed(mesh), jax.tree.map(jnp.asarray, PARAMS)
    for _ in range(3):
        before = ours
        ours = step(jaxcomm.grad(loss, "data"))(ours, put(mesh, X, "data"), put(mesh, Y, "data"))
        theirs = step(jax.grad(loss))(theirs, X, Y)
        assert before["first"].is_deleted()
    equal(ours, theirs)


class Normed(nn.Module):
    axis: str | None

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.BatchNorm(use_running_average=False, axis_name=self.axis)(nn.Dense(UNITS)(x))
        return nn.Dense(1)(nn.tanh(x))[:, 0]


@pytest.mark.parametrize("replaced", [False, True])
def test_batch_norm_of_the_whole_batch(flat: Any, replaced: bool) -> None:
    def of(axis: str | None) -> Callable[..., Any]:
        def normed(params: Any, x: Any, y: Any) -> Any:
            variables = {"params": params, "batch_stats": statistics}
            out, changed = Normed(axis).apply(variables, x, mutable=["batch_stats"])
            return jnp.mean((out - y) ** 2), changed["batch_stats"]

        return normed

    made = Normed(None).init(jax.random.key(0), X)
    statistics = made["batch_stats"]
    expected = jax.value_and_grad(of(None), has_aux=True)(made["params"], X, Y)
    step = jax.jit(jaxcomm.value_and_grad(of("data"), "data", has_aux=True))
    if replaced:
        with jaxcomm.replace_lax():
            found = step(made["params"], X, Y)
    else:
        found = step(made["params"], X, Y)
    equal(found, expected, 1e-4)


def test_masked_examples_are_divided_by_the_weights_of_the_whole_batch(flat: Any) -> None:
    def masked(params: Any, x: Any, y: Any, weights: Any, count: Callable[[Any], Any]) -> Any:
        return jnp.sum(weights * (outputs(params, x) - y) ** 2) / count(weights.sum())

    weights = (np.arange(ROWS) % 7 > 2 * (np.arange(ROWS) < 16)).astype(np.float32)
    expected = jax.value_and_grad(masked)(PARAMS, X, Y, weights, lambda count: count)
    ours = jax.jit(jaxcomm.value_and_grad(masked, "data"), static_argnums=4)
    equal(ours(PARAMS, X, Y, weights, lambda count: jaxcomm.pmean(count, "data")), expected)
    apart = ours(PARAMS, X, Y, weights, lambda count: count)
    assert abs(apart[0] - expected[0]) > 1e-3  # each rank divides by its own weights


@pytest.mark.parametrize("key", [jax.random.key(3), jax.random.PRNGKey(3)], ids=["key", "raw key"])
def test_a_key_is_the_same_on_all_ranks_until_they_fold_themselves_in(flat: Any, key: Any) -> None:
    def masks(folded: bool) -> Any:
        def dropped(params: Any, x: Any, y: Any, key: Any) -> Any:
            own = jax.random.fold_in(key, jax.lax.axis_index("data")) if folded else key
            return loss(params, x, y), jax.random.bernoulli(own, 0.5, x.shape)

        specs = (P(), P("data"), P("data"), P()) if key.ndim else None
        gradient = jaxcomm.value_and_grad(dropped, "data", has_aux=True, in_specs=specs)
        return jax.jit(gradient)(PARAMS, X, Y, key)[0][1]

    assert len({part.tobytes() for part in shards(masks(False))}) == 1
    assert len({part.tobytes() for part in shards(masks(True))}) == 8


def test_plans(flat: Any) -> None:
    straggler = make((0, None, SPECS["straggler"]))
    expected = jax.grad(loss)(PARAMS, X, Y)
    jitted = jax.jit(jaxcomm.grad(loss, "data"))
    equal(jax.block_until_ready(jitted(PARAMS, X, Y)), expected)
    assert plans_seen() == {"direct"}
    with jaxcomm.use_plan(RING):
        equal(jax.block_until_ready(jitted(PARAMS, X, Y)), expected)
    assert plans_seen() == {"direct", RING.hash[:8]}
    equal(jax.block_until_ready(jaxcomm.grad(loss, "data", plan=straggler)(PARAMS, X, Y)), expected)
    assert plans_seen() == {"direct", RING.hash[:8], straggler.hash[:8]}


def test_second_derivatives(flat: Any) -> None:
    def steepness(grad: Any) -> Any:
        return lambda params: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(grad(params, X, Y)))

    ours = jax.jit(jax.grad(steepness(jaxcomm.grad(loss, "data"))))(PARAMS)
    equal(ours, jax.grad(steepness(jax.grad(loss)))(PARAMS), 1e-4)
    direction = jax.tree.map(np.ones_like, PARAMS)
    products = [
        jax.jvp(lambda params, grad=grad: grad(params, X, Y), (PARAMS,), (direction,))[1]
        for grad in (jaxcomm.grad(loss, "data"), jax.grad(loss))
    ]
    equal(*products, 1e-4)


def test_a_function_that_is_kept_is_compiled_once(flat: Any) -> None:
    traced = []

    def counted(params: Any, x: Any, y: Any) -> Any:
        traced.append(x.shape)
        return loss(params, x, y)

    gradient = jaxcomm.grad(counted, "data", in_specs=(P(), P("data"), P("data")))
    for _ in range(3):
        gradient(PARAMS, X, Y)
    assert traced == [(ROWS // 8, FEATURES)]


def test_equal_settings_of_other_types_are_distinguished(flat: Any) -> None:
    gradient = jaxcomm.grad(lambda params, x, setting: loss(params, x, 0) * (2 if setting is True else 1), "data")
    once, twice = gradient(PARAMS, X, 1), gradient(PARAMS, X, True)
    equal(twice, jax.tree.map(lambda leaf: 2 * leaf, once))


def test_a_keyword_that_is_no_batch(flat: Any) -> None:
    def scaled(params: Any, x: Any, y: Any, scale: Any) -> Any:
        return loss(params, x, y) * scale.sum()

    scale = np.ones(3, np.float32)
    with pytest.raises(
        ValueError,
        match=r"(?s)argument 'scale' has the shape \(3,\).*Nothing states.*in_specs=\(…\), one for each positional",
    ):
        jaxcomm.grad(scaled, "data")(PARAMS, X, Y, scale=scale)
    specs = (P(), P("data"), P("data"), P())
    equal(jaxcomm.grad(scaled, "data", in_specs=specs)(PARAMS, X, Y, scale), jax.grad(scaled)(PARAMS, X, Y, scale))


@pytest.mark.parametrize("vma", [True, False], ids=["check_vma", "no check_vma"])
def test_a_rank_of_a_shard_map_differentiates_its_part(flat: Any, vma: bool) -> None:
    def with_residuals(params: Any, x: Any, y: Any) -> Any:
        return loss(params, x, y), outputs(params, x) - y

    gradient = jaxcomm.value_and_grad(with_residuals, "data", has_aux=True)
    specs = {"in_specs": (P(), P("data"), P("data")), "out_specs": ((P(), P("data")), P())}
    found = jax.jit(jax.shard_map(gradient, check_vma=vma, **specs))(PARAMS, X, Y)
    equal(found, jax.value_and_grad(with_residuals, has_aux=True)(PARAMS, X, Y))
    assert [site["calls"] for site in jaxcomm.stats() if site["calls"]] == [1]
