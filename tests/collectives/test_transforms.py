"""JAX's transformations of the collectives, compared with jax.lax: one table of functions, both modes of shard_map."""

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
from tests.collectives.lax_cases import MESH_2D, P, W, X, both_modes, compare, sharded


def varying(x: Any, vma: bool) -> Any:
    return lax.pcast(x, "d", to="varying") if vma else x


def loss(ops: Any, vma: bool) -> Callable[..., Any]:
    """A loss with replicated weights, sharded rows, and a psum inside."""
    return sharded(lambda w, x: ops.psum(jnp.sum(jnp.tanh(x @ w) ** 2), "d"), (P(), P("d")), P(), vma)


@jax.custom_vjp
def double_gradient(x: Any) -> Any:
    return jnp.sin(x)


double_gradient.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (2 * g * jnp.cos(x),))


def vmap_outside(ops: Any, vma: bool) -> Any:
    return jax.jit(jax.vmap(sharded(lambda x: ops.psum(x, "d"), P("d"), P(), vma)))(np.stack([X, 2 * X]))


def vmap_inside(ops: Any, vma: bool) -> Any:
    rows = jax.vmap(lambda row: (ops.psum(row, "d"), ops.pmax(row, "d")), in_axes=1, out_axes=1)
    return jax.jit(sharded(rows, P("d"), P(), vma))(X)


def vmap_some(ops: Any, vma: bool) -> Any:
    def body(x: Any) -> Any:
        return jax.vmap(lambda row, same: ops.psum({"row": row, "same": same}, "d"), in_axes=(1, None))(x, x.sum())

    return jax.jit(sharded(body, P("d"), P(), vma))(X)


def vmap_scatter_and_gather(ops: Any, vma: bool) -> Any:
    def body(x: Any) -> Any:
        wide = jnp.tile(x, (8, 1)) + jnp.arange(8.0)[:, None]
        scatters = jax.vmap(lambda y: ops.psum_scatter(y, "d", tiled=True), in_axes=1)(wide)
        along = jax.vmap(lambda y: ops.psum_scatter(y, "d", scatter_dimension=1), out_axes=1)(wide.reshape(2, 3, 8))
        gathers = [
            jax.vmap(lambda y, t=t: ops.all_gather(y, "d", axis=-1, tiled=t), in_axes=1)(x) for t in (True, False)
        ]
        return jax.tree.map(lambda y: y.reshape(1, -1), [scatters, along, gathers])

    return jax.jit(sharded(body, P("d"), P("d"), vma))(X)


def vmap_spmd_axis(ops: Any, vma: bool) -> Any:
    step = sharded(
        lambda x: (ops.psum(x, "a"), ops.all_gather(x, "a", tiled=True)), P("a"), (P(), P("a")), vma, MESH_2D
    )
    return jax.jit(jax.vmap(step, spmd_axis_name="b"))(np.stack([X, 2 * X]))


def vmap_axis(ops: Any, vma: bool) -> Any:
    """A sum over the vmapped axis and the mesh's axis together."""
    rows = jax.vmap(lambda row: ops.psum(row, ("i", "d")), in_axes=1, axis_name="i")
    return jax.jit(sharded(rows, P("d"), P(), vma))(X)


def vmap_axis_alone(ops: Any, vma: bool) -> Any:
    def body(x: Any) -> Any:
        same = ops.psum(1, "i")
        return ops.psum(x, "i"), ops.pmean(x, "i"), ops.pmax(x, "i"), ops.all_gather(x, "i"), same

    return jax.vmap(body, axis_name="i")(X), jax.vmap(lambda x: ops.psum_scatter(x, "i"), axis_name="i")(X[:6])


def vmap_axis_unmapped(ops: Any, vma: bool) -> Any:
    return jax.vmap(lambda x, y: ops.psum(y, "i"), in_axes=(0, None), axis_name="i")(X, X)


def vmap_axis_gradient(ops: Any, vma: bool) -> Any:
    total = lambda x: jax.vmap(lambda x: ops.psum(jnp.sin(x), "i"), axis_name="i")(x).sum()  # noqa: E731
    return jax.jit(jax.grad(total))(X)


def gradient(ops: Any, vma: bool) -> Any:
    return jax.jit(jax.value_and_grad(loss(ops, vma), argnums=(0, 1)))(W, X)


def gradient_of_square(ops: Any, vma: bool) -> Any:
    mesh = jax.sharding.Mesh(jax.devices()[:4], ("d",))
    squares = sharded(lambda x: jax.grad(lambda x: jnp.sum(ops.psum(x, "d") ** 2))(x), P("d"), P("d"), vma, mesh)
    return jax.jit(squares)(np.arange(4.0))


def gradient_inside(ops: Any, vma: bool) -> Any:
    def body(w: Any, x: Any) -> Any:
        return jax.grad(lambda w: ops.psum(jnp.sum(jnp.tanh(x @ w) ** 2), "d"))(w)

    return jax.jit(sharded(body, (P(), P("d")), P(), vma))(W, X)


def mean_of_gradients(ops: Any, vma: bool) -> Any:
    def body(w: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(x @ w["w"] + w["b"]) ** 2))(varying(w, vma))
        return ops.pmean(value, "d"), ops.pmean(grads, "d")

    return jax.jit(sharded(body, (P(), P("d")), P(), vma))({"w": W, "b": W[0]}, X)


def gradient_through_batch_norm(ops: Any, vma: bool) -> Any:
    def body(w: Any, x: Any) -> Any:
        h = x @ w
        h = h - ops.pmean(h.mean(0), "d")
        return ops.psum(jnp.sum(jnp.sin(h / jnp.sqrt(ops.pmean((h**2).mean(0), "d") + 0.1))), "d")

    return jax.jit(jax.grad(sharded(body, (P(), P("d")), P(), vma)))(W, X)


def gradient_through_scatter_and_gather(ops: Any, vma: bool) -> Any:
    def body(w: Any, x: Any) -> Any:
        parts = ops.psum_scatter(jnp.tile(jnp.tanh(x @ w), (8, 1)), "d", tiled=True)
        whole = ops.all_gather(parts**2, "d", axis=1, tiled=True)
        column = ops.psum_scatter(jnp.tile(whole[0, :8], (8, 1)), "d", scatter_dimension=1)
        return ops.psum(jnp.sum(jnp.sin(whole)) + jnp.sum(column * 0.1), "d")

    return jax.jit(jax.grad(sharded(body, (P(), P("d")), P(), vma), argnums=(0, 1)))(W, X)


def gradient_through_invariant_gather(ops: Any, vma: bool) -> Any:
    def body(x: Any) -> Any:
        return jnp.sum(jnp.sin(ops.all_gather(x, "d", to="invarying", tiled=True)))

    return jax.jit(jax.grad(sharded(body, P("d"), P(), vma)))(X)


def gradient_of_some(ops: Any, vma: bool) -> Any:
    """Only one leaf of the tree depends on the argument, and one leaf has integers."""

    def body(w: Any, x: Any) -> Any:
        out = ops.psum({"w": jnp.tanh(x @ w), "x": x, "n": x.astype(jnp.int32)}, "d")
        return jnp.sum(out["w"]) * jnp.sum(out["x"]) + out["n"].sum()

    return jax.jit(jax.grad(sharded(body, (P(), P("d")), P(), vma)))(W, X)


def gradient_of_complex(ops: Any, vma: bool) -> Any:
    total = sharded(lambda x: ops.psum(jnp.sum(jnp.abs(x * (1 + 2j)) ** 2), "d"), P("d"), P(), vma)
    return jax.jit(jax.grad(total))(X)


def gradient_of_maximum(ops: Any, vma: bool) -> Any:
    return jax.jit(jax.grad(sharded(lambda x: ops.pmax(jnp.sum(x), "d"), P("d"), P(), vma)))(X)


def maximum_of_what_has_no_gradient(ops: Any, vma: bool) -> Any:
    return jax.jit(jax.grad(sharded(lambda x: ops.pmax(3, "d") * ops.psum(x.sum(), "d"), P("d"), P(), vma)))(X)


def forward_derivative(ops: Any, vma: bool) -> Any:
    return jax.jit(lambda w, x: jax.jvp(lambda w: loss(ops, vma)(w, x), (w,), (w * 0.5,)))(W, X)


def linearized(ops: Any, vma: bool) -> Any:
    return jax.linearize(lambda w: loss(ops, vma)(w, X), W)[1](W)


def hessian(ops: Any, vma: bool) -> Any:
    return jax.jit(jax.hessian(lambda w: loss(ops, vma)(w, X)))(W)


def reverse_of_reverse(ops: Any, vma: bool) -> Any:
    return jax.jit(jax.jacrev(jax.grad(lambda w: loss(ops, vma)(w, X))))(W)


def transposed(ops: Any, vma: bool) -> Any:
    total = sharded(lambda x: ops.psum(x, "d"), P("d"), P(), vma)
    return jax.jit(lambda x: jax.linear_transpose(total, X)(x))(X[:1])


def transposed_beside_a_constant(ops: Any, vma: bool) -> Any:
    total = sharded(lambda x, c: ops.psum({"x": x, "c": c}, "d")["x"] * 2, (P("d"), P("d")), P(), vma)
    return jax.jit(lambda x: jax.linear_transpose(lambda x: total(x, X), X)(x))(X[:1])


def scan(ops: Any, vma: bool) -> Any:
    def body(x: Any) -> Any:
        def step(c: Any, _: Any) -> Any:
            return c + ops.psum(x * c.mean(), "d") * 0.01, ops.psum(varying(c.sum(), vma), "d")

        return lax.scan(step, jnp.ones((1, 6), jnp.float32), None, length=5)

    return jax.jit(sharded(body, P("d"), P(), vma))(X)


def gradient_of_scan(ops: Any, vma: bool) -> Any:
    def body(w: Any, x: Any) -> Any:
        step = lambda c, _: (c + ops.psum(jnp.tanh(x @ w) * c.mean(), "d") * 0.1, None)  # noqa: E731
        return lax.scan(step, jnp.ones((1, 3), jnp.float32), None, length=4)[0].sum()

    return jax.jit(jax.grad(sharded(body, (P(), P("d")), P(), vma)))(W, X)


def while_and_cond(ops: Any, vma: bool) -> Any:
    def body(x: Any) -> Any:
        def step(c: Any) -> Any:
            i, y = c
            return i + 1, lax.cond(i % 2 == 0, lambda y: ops.psum(x * y.mean(), "d"), lambda y: y * 0.5, y)

        return lax.while_loop(lambda c: c[0] < 4, step, (0, jnp.ones((1, 6), jnp.float32)))[1]

    return jax.jit(sharded(body, P("d"), P(), vma))(X)


def remat(ops: Any, vma: bool) -> Any:
    def body(w: Any, x: Any) -> Any:
        return ops.psum(jnp.sum(varying(jnp.tanh(ops.psum(x @ w, "d")), vma) ** 2), "d")

    return jax.jit(jax.grad(sharded(jax.checkpoint(body), (P(), P("d")), P(), vma)))(W, X)


def custom_gradient(ops: Any, vma: bool) -> Any:
    body = sharded(lambda w, x: ops.psum(double_gradient(x @ w).sum(), "d"), (P(), P("d")), P(), vma)
    return jax.jit(jax.grad(body))(W, X)


def donated(ops: Any, vma: bool) -> Any:
    step = sharded(lambda x: ops.psum(x, "d"), P("d"), P() if vma else P("d"), vma)
    return jax.jit(step, donate_argnums=0)(jnp.array(X))


def operand_used_again(ops: Any, vma: bool) -> Any:
    """The call works in place, so XLA must copy the operand that other operations still read."""
    return jax.jit(sharded(lambda x: (x, ops.psum(x, "d"), x * 2), P("d"), (P("d"), P(), P("d")), vma))(X)


def jit_inside(ops: Any, vma: bool) -> Any:
    double = jax.jit(lambda y: ops.psum(y, "d"))
    return jax.jit(
        sharded(lambda x: double(x) + double(x * 3) + jax.jit(lambda y: ops.psum(2 * y, "d"))(x), P("d"), P(), vma)
    )(X)


def nested_shard_map(ops: Any, vma: bool) -> Any:
    def inner(x: Any) -> Any:
        return ops.psum(x, "b"), ops.all_gather(x, ("b", "a"), tiled=True)

    def outer(x: Any) -> Any:
        y = ops.psum(jnp.sin(x), "a") + x
        specs = {"in_specs": P(None, "b"), "out_specs": (P(), P("b")), "axis_names": {"b"}, "check_vma": vma}
        return jax.shard_map(inner, **specs)(y)

    step = jax.shard_map(outer, mesh=MESH_2D, in_specs=P("a"), out_specs=P("a"), axis_names={"a"}, check_vma=vma)
    return jax.jit(step)(X)


def pmap(ops: Any, vma: bool) -> Any:
    groups = [[0, 1, 2, 3], [4, 5, 6, 7]]
    body = lambda x: (ops.psum(x, "i"), ops.psum(x, "i", axis_index_groups=groups), ops.all_gather(x, "i"))  # noqa: E731
    return jax.pmap(body, axis_name="i")(X)


def gradient_in_pmap(ops: Any, vma: bool) -> Any:
    return jax.pmap(jax.grad(lambda x: jnp.sum(jnp.sin(ops.psum(x, "i")))), axis_name="i")(X)


def types_only(ops: Any, vma: bool) -> Any:
    shapes = jax.eval_shape(sharded(lambda x: ops.psum({"x": x, "n": x > 0}, "d"), P("d"), P(), vma), X)
    return jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)


def without_jit(ops: Any, vma: bool) -> Any:
    with jax.disable_jit():
        return sharded(lambda x: ops.psum(x, "d") * 2, P("d"), P(), vma)(X)


CASES = [
    value
    for value in list(globals().values())
    if getattr(value, "__annotations__", {}).keys() == {"ops", "vma", "return"}
]
CASES.remove(loss)


@both_modes
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_transformation(case: Callable[[Any, bool], Any], vma: bool) -> None:
    compare(lambda ops: case(ops, vma))


def test_what_nobody_reads_does_not_travel() -> None:
    """The second pass of a rematerialised step needs one leaf of the tree, so this pass sums only that leaf."""

    def body(x: Any) -> Any:
        sums = jaxcomm.psum({"used": x, "not used": x * 2}, "d")
        return jnp.sum(jnp.sin(jnp.sin(sums["used"]))) + jnp.sum(sums["not used"])

    step = jax.grad(sharded(jax.checkpoint(body), P("d"), P(), True))
    calls = re.findall(r"jaxcomm_psum_invariant\[.*?\]((?: \w+)+)", str(jax.make_jaxpr(step)(X)), flags=re.DOTALL)
    assert sorted(len(operands.split()) for operands in calls) == [1, 2]


def test_vmap_of_a_scatter_with_the_mapped_dimension_last() -> None:
    """A case in which lax's own batching rule loses the mapped dimension."""
    x = np.arange(64.0 * 3, dtype=np.float32).reshape(64, 3)
    mapped = jax.vmap(lambda y: jaxcomm.psum_scatter(y, "d"), in_axes=1)
    result = jax.jit(sharded(lambda x: mapped(x)[None], P("d"), P("d"), True))(x)
    np.testing.assert_array_equal(result, x.reshape(8, 8, 3).sum(0))


def cast_loss(cast: Callable[..., Any]) -> Callable[..., Any]:
    """The loss of 13 layers whose weights are equal on all ranks; `cast` makes their types vary over the ranks."""

    def loss(weights: list[Any], x: Any) -> Any:
        for w in cast(weights, "d", to="varying"):
            x = jnp.tanh(x @ w)
        return lax.pmean(jnp.mean(x**2), "d")

    return sharded(loss, (P(), P("d")), P(), True)


WEIGHTS = [jnp.cos(jnp.arange(36.0) + i).reshape(6, 6) for i in range(13)]


def test_gradients_of_a_tree_that_is_cast_together_are_summed_by_one_call() -> None:
    def calls(cast: Callable[..., Any]) -> tuple[int, int]:
        text = jax.jit(jax.grad(cast_loss(cast))).lower(WEIGHTS, X).as_text()
        return text.count("@jaxcomm_collective("), text.count('all_reduce"(')

    assert calls(lax.pcast) == (0, 13)
    assert calls(jaxcomm.pcast) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "transform",
    [
        jax.grad,
        lambda f: jax.jit(jax.grad(f)),
        lambda f: jax.jit(lambda w, x: jax.jvp(lambda w: jax.grad(f)(w, x), (w,), (w,))[1]),
        lambda f: jax.jit(lambda w, x: jax.vmap(jax.grad(f), in_axes=(0, None))([jnp.stack([a, -a]) for a in w], x)),
    ],
    ids=["grad", "jit", "jvp of grad", "vmap of grad"],
)
def test_a_tree_that_is_cast_together_is_transformed_like_laxs(transform: Callable[..., Any]) -> None:
    ours, theirs = (transform(cast_loss(cast))(WEIGHTS[:3], X) for cast in (jaxcomm.pcast, lax.pcast))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_without_check_vma_a_cast_is_nothing() -> None:
    step = sharded(lambda x: jaxcomm.pcast(x, "d", to="varying"), P("d"), P("d"), False)
    np.testing.assert_array_equal(step(X), X)
