"""Arguments that `value_and_grad` splits: results equal jax's, or an error names the arguments and in_specs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

import jaxcomm
from tests.collectives.lax_cases import P

MESH = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
MESH_2D = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
EXPLICIT = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))

random = np.random.default_rng(5)
W = random.standard_normal((6, 8)).astype(np.float32)
X = random.standard_normal((32, 6)).astype(np.float32)
Y = random.standard_normal(32).astype(np.float32)
LORA = random.standard_normal((8, 4)).astype(np.float32)
TABLE = random.standard_normal((64, 8)).astype(np.float32)
TOKENS = random.integers(0, 32, (32, 5)).astype(np.int32)

WHOLE, SPLIT, NOWHERE = P(), P("data"), None

pytestmark = pytest.mark.usefixtures("no_plan")


def squares(w: Any, x: Any, y: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ w).sum(1) - y) ** 2)


def embedded(lora: Any, table: Any, tokens: Any) -> Any:
    return jnp.mean(jnp.tanh(table[tokens] @ lora) ** 2)


def weighted(w: Any, x: Any, classes: Any, weights: Any) -> Any:
    return jnp.mean(weights[classes] * jnp.tanh(x @ w).sum(1))


def broadcast(w: Any, x: Any, weights: Any) -> Any:
    return jnp.mean(weights * jnp.tanh(x @ w))


def in_parts(w: Any, x: Any, y: Any) -> Any:
    """The mean loss of four micro-batches with one row per rank."""
    parts = (x.reshape(4, -1, x.shape[-1]), y.reshape(4, -1))
    return jax.lax.map(lambda part: squares(w, *part), parts).mean()


def of_leaves(w: Any, batch: Any) -> Any:
    return squares(w, batch["x"], batch["y"])


def of_two(w: Any, real: Any, fake: Any) -> Any:
    return jnp.mean(jnp.tanh(real @ w)) - jnp.mean(jnp.tanh(fake @ w))


def place(value: Any, spec: P | None, mesh: Any) -> Any:
    return value if spec is None else jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(mesh, spec)), value)


def check(loss: Callable[..., Any], args: Any, jit: bool, **options: Any) -> None:
    wrap = jax.jit if jit else lambda function: function
    found = wrap(jaxcomm.value_and_grad(loss, options.pop("axis", "data"), **options))(*args)
    close(found, wrap(jax.value_and_grad(loss))(*args))


def close(found: Any, expected: Any) -> None:
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, expected)


class Agrees(NamedTuple):
    loss: Callable[..., Any]
    values: Any
    specs: Any
    mesh: Any = MESH
    axis: Any = "data"


CLASSES = random.integers(0, 8, 32)
WEIGHTS = np.arange(8, dtype=np.float32) ** 2
AGREES = {
    "a table that lies whole": Agrees(embedded, (LORA, TABLE, TOKENS), (NOWHERE, WHOLE, SPLIT)),
    "a table that lies whole, of the batch's rows": Agrees(embedded, (LORA, TABLE[:32], TOKENS), (WHOLE, WHOLE, SPLIT)),
    "class weights that lie whole": Agrees(weighted, (W, X, CLASSES, WEIGHTS), (WHOLE, SPLIT, SPLIT, WHOLE)),
    "as many classes as ranks": Agrees(weighted, (W, X[:8], CLASSES[:8], WEIGHTS), (WHOLE, SPLIT, SPLIT, WHOLE)),
    "broadcast weights, a row for each rank": Agrees(broadcast, (W, X[:8], WEIGHTS), (WHOLE, SPLIT, WHOLE)),
    "labels that lie whole": Agrees(squares, (W, X, Y), (WHOLE, SPLIT, WHOLE)),
    "labels that lie whole, a row for each rank": Agrees(squares, (W, X[:8], Y[:8]), (WHOLE, SPLIT, WHOLE)),
    "labels that lie nowhere": Agrees(squares, (W, X, Y), (WHOLE, SPLIT, NOWHERE)),
    "a batch that lies nowhere": Agrees(squares, (W, X, Y), (WHOLE, NOWHERE, NOWHERE)),
    "a batch that lies whole": Agrees(squares, (W, X, Y), (WHOLE, WHOLE, WHOLE)),
    "a batch of a row for each rank": Agrees(squares, (W, X[:8], Y[:8]), (WHOLE, NOWHERE, NOWHERE)),
    "micro-batches of a row for each rank": Agrees(in_parts, (W, X, Y), (WHOLE, NOWHERE, NOWHERE)),
    "a leaf that the loss does not use": Agrees(
        of_leaves, (W, {"x": X, "y": Y, "index": np.arange(32)}), (WHOLE, NOWHERE)
    ),
    "two axes": Agrees(
        squares, (W, X, Y), (P(), P(("model", "data")), P(("model", "data"))), MESH_2D, ("data", "model")
    ),
    "two axes of which one splits the batch": Agrees(
        squares, (W, X, Y), (P(), P("data"), P("data")), MESH_2D, ("data", "model")
    ),
    "one of the two axes that split the batch": Agrees(
        squares, (W, X, Y), (P(None, "model"), P(("data", "model")), P(("data", "model"))), MESH_2D
    ),
}


@pytest.mark.parametrize("jit", [True, False], ids=["jit", "no jit"])
@pytest.mark.parametrize("name", AGREES)
def test_agrees_with_jax(name: str, jit: bool) -> None:
    case = AGREES[name]
    args = [place(value, spec, case.mesh) for value, spec in zip(case.values, case.specs, strict=True)]
    check(case.loss, args, jit, axis=case.axis)


UNTIED = r"does not combine {} row by row.*Cure: in_specs=\(…\), one for each positional argument: P\('data'\)"
# The loss, its arguments, their shardings, the error text, and the in_specs with which results equal jax's results.
UNCLEAR: dict[str, tuple[Callable[..., Any], Any, Any, str, Any]] = {
    "a table of other rows than the tokens": (
        embedded,
        (LORA, TABLE, TOKENS),
        (WHOLE, NOWHERE, NOWHERE),
        r"argument 1 has the shape \(64, 8\), argument 2 has the shape \(32, 5\). Nothing states.*Cure: in_specs=",
        (P(), P(), P("data")),
    ),
    "a table that lies nowhere, tokens that lie split": (
        embedded,
        (LORA, TABLE, TOKENS),
        (WHOLE, NOWHERE, SPLIT),
        r"argument 1 has the shape \(64, 8\); the batch has 32 rows. Nothing states.*Cure: in_specs=",
        (P(), P(), P("data")),
    ),
    "a table of as many rows as the tokens": (
        embedded,
        (LORA, TABLE[:32], TOKENS),
        (WHOLE, NOWHERE, NOWHERE),
        UNTIED.format("argument 1 and argument 2"),
        (P(), P(), P("data")),
    ),
    "a table that lies split to save memory": (
        embedded,
        (LORA, TABLE, TOKENS),
        (WHOLE, SPLIT, SPLIT),
        UNTIED.format("argument 1 and argument 2"),
        (P(), P(), P("data")),
    ),
    "as many classes as ranks and rows": (
        weighted,
        (W, X[:8], CLASSES[:8], WEIGHTS),
        (WHOLE, NOWHERE, NOWHERE, NOWHERE),
        UNTIED.format("argument 3"),
        (P(), P("data"), P("data"), P()),
    ),
    "broadcast weights": (
        broadcast,
        (W, X[:8], WEIGHTS),
        (WHOLE, NOWHERE, NOWHERE),
        UNTIED.format("argument 1 and argument 2"),
        (P(), P("data"), P()),
    ),
    "two batches": (
        of_two,
        (W, X, X[::-1]),
        (WHOLE, SPLIT, SPLIT),
        UNTIED.format("argument 1 and argument 2"),
        (P(), P("data"), P("data")),
    ),
}


@pytest.mark.parametrize("jit", [True, False], ids=["jit", "no jit"])
@pytest.mark.parametrize("name", UNCLEAR)
def test_unclear_batch_needs_in_specs(name: str, jit: bool) -> None:
    loss, values, places, message, specs = UNCLEAR[name]
    args = [place(value, spec, MESH) for value, spec in zip(values, places, strict=True)]
    with pytest.raises(ValueError, match=f"(?s)^jaxcomm.value_and_grad: .*{message}"):
        check(loss, args, jit)
    check(loss, args, jit, in_specs=specs)


def test_one_rank_splits_nothing() -> None:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        check(embedded, (LORA, TABLE, TOKENS), jit=True)


def test_keyword_table_that_lies_whole() -> None:
    def loss(w: Any, x: Any, *, table: Any) -> Any:
        return jnp.mean(jnp.tanh(x @ w)) + jnp.mean(table[(x[:, 0] > 0).astype(int)])

    kwargs = {"table": place(TABLE, WHOLE, MESH)}
    found = jax.jit(jaxcomm.grad(loss, "data"))(W, place(X, SPLIT, MESH), **kwargs)
    close(found, jax.grad(loss)(W, X, **kwargs))


# The ways in which a step calls value_and_grad with the arguments of a jitted function.
STEPS: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit,
    "nested jit": lambda function: jax.jit(lambda *args: jax.jit(function)(*args)),
    "in_shardings": lambda function: jax.jit(
        function, in_shardings=tuple(NamedSharding(MESH, spec) for spec in (WHOLE, WHOLE, SPLIT))
    ),
    "lowered": lambda function: lambda *args: jax.jit(function).lower(*args).compile()(*args),
    "a static argument": lambda function: functools.partial(
        jax.jit(lambda _, *args: function(*args), static_argnums=0), "setting"
    ),
    "a loop": lambda function: jax.jit(
        lambda *args: jax.lax.fori_loop(0, 1, lambda _, __: function(*args), function(*args))
    ),
}


@pytest.mark.parametrize("step", STEPS)
def test_places_of_the_arguments_of_a_jitted_step(step: str) -> None:
    places = (NOWHERE,) * 3 if step == "in_shardings" else (WHOLE, WHOLE, SPLIT)
    args = [place(value, spec, MESH) for value, spec in zip((LORA, TABLE, TOKENS), places, strict=True)]
    found = STEPS[step](jaxcomm.value_and_grad(embedded, "data"))(*args)
    close(found, jax.value_and_grad(embedded)(LORA, TABLE, TOKENS))


def test_guesses_are_checked_once() -> None:
    traced = []

    def counted(w: Any, x: Any, y: Any) -> Any:
        traced.append(x.shape[0])
        return squares(w, x, y)

    gradient = jaxcomm.grad(counted, "data", mesh=MESH)
    for _ in range(3):
        gradient(W, X, Y)
    assert traced == [32, 4, 4]  # traces with x whole, with y whole, and for the gradient


@pytest.mark.parametrize("stated", [True, False])
def test_closed_over_weights_of_a_batch_of_a_row_for_each_rank(stated: bool) -> None:
    weights = np.arange(8, dtype=np.float32)[:, None]
    specs = (P(), P("data")) if stated else None
    with pytest.raises(ValueError, match=r"(?s)a batch of one row for each rank, but not of two.*Cure: pass that"):
        check(lambda w, x: jnp.mean(weights * (x @ w)), (W, place(X[:8], SPLIT, MESH)), jit=True, in_specs=specs)


@pytest.mark.parametrize("where", [NOWHERE, WHOLE])
def test_batch_that_the_step_closes_over(where: P | None) -> None:
    x, y = place((X, Y), SPLIT, MESH)
    found, expected = (
        jax.jit(lambda w, differentiate=differentiate: differentiate(w, x, y))(place(W, where, MESH))
        for differentiate in (jaxcomm.value_and_grad(squares, "data"), jax.value_and_grad(squares))
    )
    close(found, expected)


def test_batch_and_table_that_the_step_closes_over() -> None:
    table, tokens = place(TABLE, WHOLE, MESH), place(TOKENS, SPLIT, MESH)
    found = jax.jit(lambda lora: jaxcomm.grad(embedded, "data")(lora, table, tokens))(LORA)
    close(found, jax.grad(embedded)(LORA, TABLE, TOKENS))


@pytest.mark.parametrize("spec", [WHOLE, SPLIT, NOWHERE])
def test_table_that_the_loss_closes_over(spec: P | None) -> None:
    table = place(TABLE, spec, MESH)
    check(lambda lora, tokens: embedded(lora, jnp.asarray(table), tokens), (LORA, place(TOKENS, SPLIT, MESH)), jit=True)


def test_closed_over_table_of_explicit_axes_gets_an_error_with_a_cure() -> None:
    def loss(lora: Any, table: Any, tokens: Any) -> Any:
        return jnp.mean(jnp.tanh(table.at[tokens].get(out_sharding=P("data")) @ lora) ** 2)

    lora, table, tokens = (place(*each, EXPLICIT) for each in ((LORA, WHOLE), (TABLE, WHOLE), (TOKENS, SPLIT)))
    with jax.set_mesh(EXPLICIT):
        with pytest.raises(jaxcomm.JaxcommError, match=r"(?s)the loss closes over an array.*Cure: pass it as"):
            jaxcomm.grad(lambda lora, tokens: loss(lora, table, tokens), "data")(lora, tokens)
        check(loss, (lora, table, tokens), jit=True)
