"""The collectives compared with jax.lax: types, shapes, axes, groups, constants and errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcomm
from jaxcomm import log
from tests.collectives.lax_cases import MESH_2D, P, X, both_modes, compare, sharded

REDUCTIONS = ["psum", "pmean", "pmax", "pmin"]
ALL = [*REDUCTIONS, "psum_scatter", "all_gather"]


def on_axis(body: Callable[..., Any], vma: bool, out: Any = None, x: Any = X) -> Any:
    """Runs `body` on the rows of `x`, one row per device."""
    return jax.jit(sharded(body, P("d"), P() if out is None else out, vma))(x)


def on_axes(body: Callable[..., Any], out: Any, vma: bool, x: Any = X) -> Any:
    """Runs `body` on the 4 × 2 mesh: device (i, j) has quarter i of the rows and half j of the columns."""
    return jax.jit(sharded(body, P("a", "b"), out, vma, MESH_2D))(x)


def each(names: list[str], ops: Any, *args: Any, **options: Any) -> list[Any]:
    return [getattr(ops, name)(*args, **options) for name in names]


REAL = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
REAL += ["bfloat16", "float16", "float32", "float64"]
SUMS = ["psum", "pmean", "psum_scatter", "all_gather"]
DTYPES = {"bool": [*REDUCTIONS, "all_gather"], **dict.fromkeys(REAL, ALL), "complex64": SUMS, "complex128": SUMS}


@both_modes
@pytest.mark.parametrize("dtype", DTYPES)
def test_element_types(dtype: str, vma: bool) -> None:
    x = (np.tile(X, (8, 1)) * 3).astype(dtype) if dtype != "bool" else np.tile(X > 0, (8, 1))
    out = [P("d") if name in ("psum_scatter", "all_gather") else P() for name in DTYPES[dtype]]
    compare(lambda ops: on_axis(lambda x: each(DTYPES[dtype], ops, x, "d"), vma, out, x))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int4"])
@pytest.mark.parametrize("name", ALL)
def test_element_types_that_the_core_lacks_stay_laxs(name: str, dtype: str, caplog: pytest.LogCaptureFixture) -> None:
    def case(ops: Any) -> Any:
        """The core still runs the float32 operand of the same call."""

        def body(x: Any) -> Any:
            wide = jnp.tile(x, (8, 1))
            return jax.tree.map(lambda y: y.astype(jnp.float32), each([name], ops, [wide.astype(dtype), wide], "d"))

        return on_axis(body, True, P("d"))

    log.say_once.cache_clear()
    for _ in range(2):
        compare(case)
    logged = [record.getMessage() for record in caplog.records if record.name == "jaxcomm"]
    assert len(logged) == 1
    assert f"jaxcomm's core has no {name.replace('pmean', 'psum')} of {dtype}: it runs as jax.lax's" in logged[0]


@both_modes
@pytest.mark.parametrize("name", ["pmax", "pmin"])
def test_complex_numbers_have_no_order(name: str, vma: bool) -> None:
    compare(lambda ops: on_axis(lambda x: getattr(ops, name)(x.astype(jnp.complex64), "d"), vma))


def test_booleans_have_no_scattered_sum() -> None:
    compare(lambda ops: on_axis(lambda x: ops.psum_scatter(jnp.tile(x > 0, (8, 1)), "d"), True, P("d")))


SHAPES = {
    "scalar": lambda x: x.sum(),
    "vector": lambda x: x[0],
    "empty": lambda x: x[:, :0],
    "four dimensions": lambda x: x.reshape(1, 2, 3, 1),
    "same on all": lambda x: jnp.arange(3.0),
    "weak type": lambda x: 2.0 * jax.lax.axis_index("d"),
}


@both_modes
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: str, vma: bool) -> None:
    compare(lambda ops: on_axis(lambda x: each(REDUCTIONS, ops, SHAPES[shape](x), "d"), vma))


TREES = {
    "mixed": lambda x: {"a": x, "b": (x.sum(), (x[0, :2] * 10).astype(jnp.int32)), "c": x > 0, "z": x[:, :0]},
    "constants": lambda x: {"one": 1, "half": 0.5, "true": True, "numpy": np.arange(3), "jax": jnp.ones(2), "x": x},
    "none": lambda x: (None, x, []),
    "the same twice": lambda x: (x, x, {"again": x}),
    "empty": lambda x: {},
}


@both_modes
@pytest.mark.parametrize("tree", TREES)
def test_trees(tree: str, vma: bool) -> None:
    compare(lambda ops: on_axis(lambda x: each(REDUCTIONS, ops, TREES[tree](x), "d"), vma))


@pytest.mark.parametrize("constant", [1, 2.5, 1j, np.int8(3), np.ones(2)], ids=repr)
def test_constants_are_folded(constant: Any) -> None:
    def case(ops: Any) -> Any:
        seen: list[Any] = []
        on_axis(lambda x: seen.extend(each(["psum", "pmean"], ops, constant, "d")) or x.sum(), False)
        return seen

    compare(case)


def test_a_tree_is_one_call() -> None:
    step = sharded(lambda x: jaxcomm.psum({"a": x, "b": [x.sum(), x > 0]}, "d"), P("d"), P(), True)
    jaxpr = jax.make_jaxpr(step)(X).jaxpr.eqns[0].params["jaxpr"]
    assert [eqn.primitive.name for eqn in jaxpr.eqns if "psum" in eqn.primitive.name] == ["jaxcomm_psum_invariant"]


AXES = {
    "both": (("a", "b"), P()),
    "both, reversed": (("b", "a"), P()),
    "a": ("a", P(None, "b")),
    "b": ("b", P("a", None)),
}


@both_modes
@pytest.mark.parametrize("axes", AXES)
def test_axes(axes: str, vma: bool) -> None:
    names, out = AXES[axes]
    compare(lambda ops: on_axes(lambda x: each(REDUCTIONS, ops, x, names), out, vma))


ODD_AXES = {
    "list": (["a", "b"], P()),
    "none": ((), P("a", "b")),
    "positional": (0, P("b")),
    "positional and named": (("a", 0), P("b")),
}


@both_modes
@pytest.mark.parametrize("axes", ODD_AXES)
@pytest.mark.parametrize("name", ["psum", "pmax"])
def test_odd_axes(name: str, axes: str, vma: bool) -> None:
    names, out = ODD_AXES[axes]
    compare(lambda ops: on_axes(lambda x: getattr(ops, name)(x, names), out, vma))


@both_modes
@pytest.mark.parametrize("name", ALL)
def test_an_unknown_axis_says_what_to_do(name: str, vma: bool) -> None:
    with pytest.raises(NameError, match=rf"(?s)jaxcomm.{name}: there is no axis 'q' here.*\('d',\).*Cure: "):
        on_axis(lambda x: getattr(jaxcomm, name)(x, ("d", "q")), vma)
    with pytest.raises(NameError, match=rf"jaxcomm.{name}: there is no axis 'd' here"):
        getattr(jaxcomm, name)(X, "d")


@both_modes
def test_one_axis_after_the_other(vma: bool) -> None:
    compare(lambda ops: on_axes(lambda x: [f(f(x, "a"), "b") for f in (ops.psum, ops.pmean, ops.pmax)], P(), vma))


@both_modes
@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize("axes", ["a", "b", ("a", "b"), ("b", "a"), ()], ids=str)
def test_gather(axes: Any, tiled: bool, vma: bool) -> None:
    def gathers(ops: Any) -> Callable[..., Any]:
        return lambda x: [ops.all_gather(x, axes, axis=axis, tiled=tiled) for axis in (0, 1, -1)]

    compare(lambda ops: on_axes(gathers(ops), P(("a", "b")), vma))


@both_modes
@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize("axes", ["a", "b", ("a", "b"), ("b", "a"), ()], ids=str)
def test_scatter(axes: Any, tiled: bool, vma: bool) -> None:
    n = int(np.prod([MESH_2D.shape[axis] for axis in axes]))
    x = np.arange(4 * n * 8 * n * n, dtype=np.float32).reshape(4 * n, 4 * n, 2 * n) % 97

    def scatters(ops: Any) -> Callable[..., Any]:
        def scatter(x: jax.Array, dimension: int) -> Any:
            operand = x if tiled else jax.lax.slice_in_dim(x, 0, n, axis=dimension)
            return ops.psum_scatter(operand, axes, scatter_dimension=dimension, tiled=tiled)

        return lambda x: [scatter(x, dimension) for dimension in range(3)]

    compare(lambda ops: on_axes(scatters(ops), P(("a", "b")), vma, x))


def test_scatter_of_what_the_ranks_do_not_divide() -> None:
    compare(lambda ops: on_axis(lambda x: ops.psum_scatter(x, "d"), True, P("d")))
    compare(lambda ops: on_axis(lambda x: ops.psum_scatter(x, "d", scatter_dimension=1, tiled=True), True, P("d")))


@both_modes
@pytest.mark.parametrize("to", ["varying", "invarying", "nowhere"])
def test_gather_to(to: str, vma: bool) -> None:
    compare(lambda ops: on_axis(lambda x: ops.all_gather(x, "d", to=to), vma, P() if to == "invarying" else P("d")))


@pytest.mark.parametrize("name", ["pmax", "pmin"])
@pytest.mark.parametrize("rank", [0, 3, 7])
def test_a_nan_of_any_rank_is_the_result_on_all(name: str, rank: int) -> None:
    x = np.where(np.arange(8)[:, None] == rank, np.nan, np.ones((8, 5)))
    result = on_axis(lambda x: getattr(jaxcomm, name)(x, "d"), False, P("d"), x)
    assert np.isnan(np.asarray(result)).all()


def test_gather_to_reduced() -> None:
    def gather(ops: Any) -> Callable[..., Any]:
        return lambda x: jax.lax.pcast(ops.all_gather(x, "d", to="reduced"), "d", to="varying")

    compare(lambda ops: on_axis(gather(ops), True, P("d")))


def test_sum_of_unreduced() -> None:
    def total(ops: Any) -> Callable[..., Any]:
        return lambda x: ops.psum(jax.lax.pcast(x, "d", to="unreduced"), "d")

    compare(lambda ops: on_axis(total(ops), True))


@both_modes
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("groups", [[[0, 3, 5, 6], [1, 2, 4, 7]], [[0, 1, 2, 3], [4, 5, 6, 6]]], ids=str)
def test_groups(groups: Any, name: str, vma: bool) -> None:
    operand = (lambda x: x[:, :4].T) if name == "psum_scatter" else (lambda x: x)
    compare(lambda ops: on_axis(lambda x: getattr(ops, name)(operand(x), "d", axis_index_groups=groups), vma, P("d")))


def test_groups_of_one() -> None:
    alone = [[i] for i in range(8)]
    compare(lambda ops: on_axis(lambda x: each(ALL, ops, x, "d", axis_index_groups=alone), False, P("d")))


@pytest.mark.parametrize("groups", [[[0, 1, 2], [3, 4, 5, 6, 7]], [[7, 0], [3], [5, 1, 2], [4, 6]]])
@pytest.mark.parametrize("name", ["psum", "pmax", "pmin"])
def test_groups_of_unlike_sizes(name: str, groups: list[list[int]]) -> None:
    compare(lambda ops: on_axis(lambda x: getattr(ops, name)(x, "d", axis_index_groups=groups), False, P("d")))


def test_groups_that_change_from_step_to_step_within_one_compiled_step() -> None:
    period = [[[0, 1, 2], [3, 4, 5, 6, 7]], [[0, 7], [1, 6], [2, 3, 4], [5]], [list(range(8))]]

    def steps(ops: Any) -> Any:
        def step(i: Any, x: Any) -> Any:
            sums = [partial(ops.psum, axis_name="d", axis_index_groups=groups) for groups in period]
            return jax.lax.switch(i % len(period), sums, x) / 2

        return on_axis(lambda x: jax.lax.fori_loop(0, 7, step, x.astype(jnp.float32)), False, P("d"))

    compare(steps)


@pytest.mark.parametrize(
    ("groups", "error", "message"),
    [
        ([[0, 1], [2, 3]], ValueError, "axis_index_groups have 4 of the 8 ranks"),
    ],
)
def test_groups_that_jaxcomm_does_not_do(groups: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"psum over 'd': {message}"):
        on_axis(lambda x: jaxcomm.psum(x, "d", axis_index_groups=groups), False, P("d"))


@both_modes
def test_eager_shard_map(vma: bool) -> None:
    out = P() if vma else P("d")
    compare(lambda ops: sharded(lambda x: each(REDUCTIONS, ops, x, "d"), P("d"), out, vma)(X))
    compare(lambda ops: sharded(lambda x: ops.all_gather(x, "d"), P("d"), P("d"), vma)(X))


def test_devices_in_another_order() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices())[[3, 1, 7, 0, 2, 6, 5, 4]].reshape(4, 2), ("a", "b"))
    step = lambda ops: lambda x: (ops.psum(x, "a"), ops.all_gather(x, ("b", "a")))  # noqa: E731
    compare(lambda ops: jax.jit(sharded(step(ops), P("a", "b"), (P(None, "b"), P(("a", "b"))), True, mesh))(X))


def test_a_mesh_of_some_devices() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices())[[5, 2, 7]], ("d",))
    compare(lambda ops: jax.jit(sharded(lambda x: ops.psum(x, "d"), P("d"), P(), True, mesh))(X[:6]))


@pytest.mark.parametrize("replicated", [True, False], ids=["summed by jax.grad", "pcast to varying"])
@both_modes
def test_values_that_all_ranks_share_are_reduced_as_by_lax_and_logged_once(
    vma: bool, replicated: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def case(ops: Any) -> Any:
        def body(w: Any, x: Any) -> Any:
            grads = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(
                w if replicated else jax.lax.pcast(w, "d", to="varying")
            )
            return ops.pmean(grads, "d"), ops.psum(1, "d"), ops.psum(jnp.arange(3), "d"), ops.psum(x, "d")

        return jax.jit(sharded(body, (P(), P("d")), P(), vma))(np.ones((6, 3), np.float32), X)

    log.say_once.cache_clear()
    for _ in range(2):
        compare(case)
    logged = [record.getMessage() for record in caplog.records if record.name == "jaxcomm"]
    assert len(logged) == (vma and replicated)
    for message in logged:
        assert "jaxcomm.pmean over 'd': all 8 ranks have the same operand" in message
        assert (
            "8 times the mean" in message and "Cure: differentiate with respect to jax.lax.pcast(params, 'd'" in message
        )


@both_modes
def test_the_step_in_the_readme_averages_gradients(vma: bool) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    step = re.search(r"^def step\(.*?(?=^    \.\.\.$)", text, re.MULTILINE | re.DOTALL)
    assert step

    def loss(w: Any, x: Any) -> Any:
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    names: dict[str, Any] = {"jax": jax, "jaxcomm": jaxcomm, "loss": loss}
    exec(step[0] + "    return grads\n", names)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    w = np.ones((6, 3), np.float32)
    grads = jax.jit(sharded(names["step"], (P(), P("data")), P(), vma, mesh))(w, X)
    np.testing.assert_allclose(grads, jax.grad(loss)(w, X), rtol=1e-5, atol=1e-6)


def some_of_all(ops: Any, x: Any) -> Any:
    return ops.psum({"x": x, "n": x.sum()}, "a"), ops.pmax(x > 0, "a"), ops.all_gather(x, "a", axis=1, to="invarying")


@pytest.mark.parametrize("replaced", [False, True], ids=["jaxcomm", "replace_lax"])
def test_a_step_for_no_devices_runs_lax_and_says_so_once(replaced: bool, caplog: pytest.LogCaptureFixture) -> None:
    log.say_once.cache_clear()
    ops = jax.lax if replaced else jaxcomm
    step = jax.jit(sharded(lambda x: some_of_all(ops, x), P("a"), P(), True, MESH_2D.abstract_mesh))
    with jaxcomm.replace_lax() if replaced else contextlib.nullcontext():
        for _ in range(2):
            text = step.trace(jax.ShapeDtypeStruct(X.shape, X.dtype)).lower(lowering_platforms=("cpu",)).as_text()
            assert "jaxcomm" not in text and "stablehlo.all_reduce" in text
    logged = [record.getMessage() for record in caplog.records if "psum runs as jax.lax's" in record.getMessage()]
    assert len(logged) == 1 and "no devices are assigned to the mesh" in logged[0]


@pytest.mark.parametrize("replaced", [False, True], ids=["jaxcomm", "replace_lax"])
def test_an_exported_step_has_laxs_collectives(replaced: bool) -> None:
    """Exported steps use lax, because they may run on other devices in processes without jaxcomm."""
    specs = P("a", "b"), P("a", "b"), False, MESH_2D
    step = jax.jit(sharded(lambda x: ops.psum(x, "a") + ops.psum(x, ("a", "b")), *specs))
    x = jax.device_put(X, jax.NamedSharding(MESH_2D, P("a", "b")))
    ops = jax.lax
    expected = step(x)
    jax.clear_caches()
    ops = jax.lax if replaced else jaxcomm
    with jaxcomm.replace_lax() if replaced else contextlib.nullcontext():
        for platforms in (None, ["cpu"], ["cpu", "cuda"]):
            exported = jax.export.export(step, platforms=platforms)(x)
            assert "@jaxcomm" not in exported.mlir_module()
            np.testing.assert_allclose(jax.jit(exported.call)(x), expected, rtol=1e-5)


def test_an_axis_of_one_rank() -> None:
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    compare(lambda ops: jax.jit(sharded(lambda x: each(REDUCTIONS, ops, x, "d"), P("d"), P(), True, mesh))(X))
    compare(lambda ops: jax.jit(sharded(lambda x: ops.all_gather(x, "d"), P("d"), P("d"), True, mesh))(X))
    compare(lambda ops: jax.jit(sharded(lambda x: ops.psum_scatter(x[:1], "d"), P("d"), P("d"), True, mesh))(X))


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_other_platforms_run_lax_and_say_so_once(platform: str, caplog: pytest.LogCaptureFixture) -> None:
    def body(x: Any) -> Any:
        return (
            jaxcomm.psum({"x": x, "n": x.sum()}, "d"),
            jaxcomm.pmax(x, "d"),
            jaxcomm.all_gather(x, "d", to="invarying"),
        )

    log.say_once.cache_clear()  # other tests may have logged the same line
    step = jax.jit(sharded(body, P("d"), P(), True))
    for _ in range(2):
        text = step.trace(X).lower(lowering_platforms=(platform,)).as_text()
        assert "jaxcomm" not in text
        assert text.count("stablehlo.all_reduce") == 3
        assert "stablehlo.all_gather" in text
    records = [record.getMessage() for record in caplog.records if record.name == "jaxcomm"]
    if platform == "cuda":  # GPUs have a core, but this machine has no certificate
        assert [record.split(" runs as")[0] for record in records[:2]] == [
            "jaxcomm.psum over GPUs",
            "jaxcomm.pmax over GPUs",
        ]
        assert records[2:] == ["jaxcomm has no all_gather for GPUs: it runs as jax.lax's, without a plan."]
    else:
        assert records == [
            f"jaxcomm has no core for {platform} yet: its collectives run as jax.lax's there, without a plan."
        ]
