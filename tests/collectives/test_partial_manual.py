"""shard_map over one axis of a mesh, while XLA partitions the other axis: collectives must not gather operands."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

import jaxcomm
from tests.collectives.lax_cases import MESH_2D, P, compare

# The body, the shapes and shardings of its operands, and the result's out_specs.
CASES: dict[str, tuple[Callable[..., Any], list[tuple[tuple[int, ...], Any]], Any]] = {
    "columns": (lambda ops, x: ops.psum(x, "a"), [((8, 8), P("a", "b"))], P()),
    "whole": (lambda ops, x: ops.psum(x, "a"), [((8, 8), P("a"))], P()),
    "rows": (lambda ops, x: ops.psum(x, "a"), [((16, 8), P(("a", "b")))], P()),
    "last of three": (lambda ops, x: ops.psum(x, "a"), [((4, 2, 2), P("a", None, "b"))], P()),
    "scalar": (lambda ops, x: ops.psum(x.sum(), "a"), [((8, 8), P("a", "b"))], P()),
    "maximum": (lambda ops, x: ops.pmax(x, "a"), [((8, 8), P("a", "b"))], P()),
    "tree": (
        lambda ops, *xs: ops.psum({"xs": xs, "n": xs[0].astype(jnp.int8)}, "a"),
        [((8, 8), P("a", "b")), ((16,), P("a")), ((8, 4, 4), P("a", None, "b"))],
        P(),
    ),
    "gather": (lambda ops, x: ops.all_gather(x, "a"), [((8, 8), P("a", "b"))], P("a")),
    "scatter": (lambda ops, x: ops.psum_scatter(x, "a", tiled=True), [((16, 8), P("a", "b"))], P("a")),
    "scatter the second": (
        lambda ops, x: ops.psum_scatter(x, "a", scatter_dimension=1),
        [((16, 4, 8), P("a", None, "b"))],
        P("a"),
    ),
    "gradient": (
        lambda ops, x: jax.grad(lambda x: jnp.sum(ops.psum(jnp.sin(x), "a") ** 2))(x),
        [((8, 8), P("a", "b"))],
        P("a"),
    ),
    "product": (lambda ops, x, w: ops.psum(x.T @ x @ w, "a"), [((8, 4), P("a")), ((16, 6), P("a", "b"))], P()),
    "loop": (
        lambda ops, x: jax.lax.fori_loop(0, 3, lambda _, y: jnp.sin(ops.psum(y, "a") + x), x),
        [((8, 8), P("a", "b"))],
        P("a"),
    ),
}


def place(shape: tuple[int, ...], spec: Any, mesh: Any) -> jax.Array:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 7
    return jax.device_put(values, NamedSharding(mesh, spec))


def step(case: str, ops: Any) -> Any:
    body, _, out = CASES[case]
    spec = P("a")
    return jax.jit(
        jax.shard_map(
            lambda *xs: body(ops, *[jnp.sin(x) for x in xs]),
            mesh=MESH_2D,
            in_specs=spec,
            out_specs=out,
            axis_names={"a"},
        )
    )


@pytest.mark.parametrize("case", CASES)
def test_results(case: str) -> None:
    compare(lambda ops: step(case, ops)(*[place(shape, spec, MESH_2D) for shape, spec in CASES[case][1]]))


@pytest.mark.parametrize("case", [case for case in CASES if case != "product"])
def test_nothing_is_gathered(case: str) -> None:
    operands = [place(shape, spec, MESH_2D) for shape, spec in CASES[case][1]]
    compiled = step(case, jaxcomm).lower(*operands).compile().as_text()
    assert "jaxcomm_collective" in compiled
    assert not re.findall(r"all-gather|all-to-all|collective-permute", compiled)


def test_results_stay_sharded() -> None:
    result = step("columns", jaxcomm)(place((8, 8), P("a", "b"), MESH_2D))
    assert result.sharding.spec == P(None, "b")


def test_explicit_axes() -> None:
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)

    def case(ops: Any) -> Any:
        def body(x: Any) -> Any:
            return ops.psum(x, "a"), ops.all_gather(x, "a", tiled=True)

        with jax.set_mesh(mesh):
            specs = {"in_specs": P("a"), "out_specs": (P(), P("a")), "axis_names": {"a"}}
            return jax.jit(jax.shard_map(body, **specs))(place((16, 6), P("a", "b"), mesh))

    compare(case)
