"""A loss may state shardings over the batch's axis, in every form that JAX has: `value_and_grad` agrees with jax."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.lax import with_sharding_constraint
from jax.sharding import AxisType, Mesh, NamedSharding

import jaxcomm
from tests.collectives.lax_cases import P

AUTO, EXPLICIT = (
    jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2) for kind in (AxisType.Auto, AxisType.Explicit)
)
THREE = jax.make_mesh((2, 2, 2), ("rack", "data", "model"), axis_types=(AxisType.Auto,) * 3)
FLAT = Mesh(AUTO.devices.reshape(8), ("data",))

random = np.random.default_rng(3)
W = random.standard_normal((6, 8)).astype(np.float32)
X = random.standard_normal((8, 6)).astype(np.float32)

pytestmark = pytest.mark.usefixtures("no_plan")


def put(mesh: Any, value: Any, *spec: Any) -> Any:
    return jax.device_put(value, NamedSharding(mesh, P(*spec)))


def agrees(loss: Callable[..., Any], args: Any, axis: Any = "data", **options: Any) -> None:
    found = jax.jit(jaxcomm.value_and_grad(loss, axis, **options))(*args)
    expected = jax.jit(jax.value_and_grad(loss))(*args)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, expected)


def squares(constrain: Callable[[Any], Any]) -> Callable[..., Any]:
    """A loss that applies `constrain` to its activations, [examples, units]."""
    return lambda w, x: jnp.mean(constrain(jnp.tanh(x @ w)) ** 2)


def constrained(*spec: Any, mesh: Any = AUTO) -> Callable[[Any], Any]:
    return lambda h: with_sharding_constraint(h, NamedSharding(mesh, P(*spec)))


@jax.custom_vjp
def both_ways(h: Any) -> Any:
    return constrained("data")(h)


both_ways.defvjp(lambda h: (both_ways(h), None), lambda _, g: (constrained("data", "model")(g),))


def in_a_scan(h: Any) -> Any:
    body = jax.checkpoint(lambda carry, _: (constrained("data")(jnp.sin(carry)), None))
    return jax.lax.scan(body, jnp.zeros_like(h) + h, None, length=3)[0]


def in_a_jit_with_shardings(h: Any) -> Any:
    sharding = NamedSharding(AUTO, P("data", "model"))
    return jax.jit(jnp.sin, in_shardings=sharding, out_shardings=sharding)(h)


def in_a_shard_map(h: Any) -> Any:
    body = lambda part: with_sharding_constraint(jnp.sin(part), P("data"))  # noqa: E731
    specs = P(None, "model")
    return jax.shard_map(body, in_specs=specs, out_specs=specs, axis_names={"model"}, check_vma=False)(h)


CONSTRAINTS: dict[str, Callable[[Any], Any]] = {
    "both axes": constrained("data", "model"),
    "the batch's axis": constrained("data"),
    "one dimension over both": constrained(("data", "model")),
    "the batch's axis on another dimension": constrained(None, "data"),
    "unconstrained": constrained("data", P.UNCONSTRAINED),
    "an abstract mesh": constrained("data", "model", mesh=AUTO.abstract_mesh),
    "another mesh of the same devices": constrained("data", mesh=FLAT),
    "a tree": lambda h: with_sharding_constraint({"h": h}, {"h": NamedSharding(AUTO, P("data"))})["h"],
    "a scan, recomputed": in_a_scan,
    "vmap": jax.vmap(constrained("model")),
    "vmap with an axis name": jax.vmap(constrained("model"), spmd_axis_name="data"),
    "jit": jax.jit(constrained("data", "model")),
    "jit with shardings": in_a_jit_with_shardings,
    "custom_vjp": both_ways,
}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_with_sharding_constraint(name: str) -> None:
    agrees(squares(CONSTRAINTS[name]), (put(AUTO, W, None, "model"), put(AUTO, X, "data")))


@pytest.mark.parametrize(
    "constrain",
    [lambda h: with_sharding_constraint(h, P("data", "model")), in_a_shard_map],
    ids=["constraint", "nested shard_map"],
)
def test_specs_under_a_mesh(constrain: Callable[[Any], Any]) -> None:
    with jax.set_mesh(AUTO):
        agrees(squares(constrain), (put(AUTO, W, None, "model"), put(AUTO, X, "data")))


def test_the_constraint_on_the_other_axis_stays() -> None:
    args = put(AUTO, W), put(AUTO, X, "data")
    lowered = jax.jit(jaxcomm.grad(squares(constrained("data", "model")), "data")).lower(*args).as_text()
    assert "sdy.sharding_constraint" in lowered and '[{}, {"model"}]' in lowered


@pytest.mark.parametrize("axis", ["rack", ("rack", "data")], ids=str)
def test_one_or_both_of_the_axes_of_a_dimension(axis: Any) -> None:
    args = put(THREE, W, None, "model"), put(THREE, X, ("rack", "data"))
    agrees(squares(constrained(("rack", "data"), "model", mesh=THREE)), args, axis)


def test_inside_a_shard_map_over_another_axis() -> None:
    loss = squares(lambda h: with_sharding_constraint(h, P("data")))

    def of_half(w: Any, x: Any) -> Any:
        return jax.lax.pmean(jaxcomm.grad(loss, "data", mesh=None)(w, x), "model")

    specs = {"in_specs": (P(), P("model")), "out_specs": P(), "axis_names": {"model"}, "check_vma": False}
    found = jax.jit(jax.shard_map(of_half, mesh=AUTO, **specs))(W, X)
    np.testing.assert_allclose(found, jax.grad(squares(lambda h: h))(W, X), rtol=1e-4, atol=1e-5)


def test_a_users_own_manual_axis_is_still_refused() -> None:
    agrees(squares(constrained("data")), (put(AUTO, W), put(AUTO, X, "data")))  # installs the rewriting of shardings
    step = jax.shard_map(constrained("data"), mesh=AUTO, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})
    with pytest.raises(ValueError, match="manual"):
        jax.jit(step)(put(AUTO, X, "data"))


BOTH = P("data", "model")
OUT_SHARDINGS: dict[str, Callable[[Any, Any], Any]] = {
    "einsum": lambda w, x: jnp.einsum("bi,ij->bj", x, w, out_sharding=BOTH),
    "a NamedSharding": lambda w, x: jnp.einsum("bi,ij->bj", x, w, out_sharding=NamedSharding(EXPLICIT, BOTH)),
    "reshard": lambda w, x: jax.sharding.reshard(x @ w, BOTH),
    "reshard to a NamedSharding": lambda w, x: jax.sharding.reshard(x @ w, NamedSharding(EXPLICIT, BOTH)),
    "an assertion": lambda w, x: with_sharding_constraint(x @ w, P("data", None)),
    "zeros": lambda w, x: x @ w + jnp.zeros((len(x), 8), out_sharding=P("data")),
    "random": lambda w, x: x @ w + 0 * jax.random.normal(jax.random.key(0), (len(x), 8), out_sharding=P("data")),
    "reshape": lambda w, x: jnp.reshape(x @ w, (len(x), 2, 4), out_sharding=P("data", None, "model")),
    "auto_axes": lambda w, x: jax.sharding.auto_axes(lambda w, x: x @ w, out_sharding=BOTH)(w, x),
    "jit": lambda w, x: jax.jit(lambda w, x: jnp.dot(x, w, out_sharding=BOTH))(w, x),
    "vmap": lambda w, x: jax.vmap(lambda row: jnp.dot(row, w, out_sharding=P("model")))(x),
}


@pytest.mark.parametrize("name", OUT_SHARDINGS)
def test_out_sharding(name: str) -> None:
    with jax.set_mesh(EXPLICIT):
        args = put(EXPLICIT, W), put(EXPLICIT, X, "data")
        agrees(lambda w, x: jnp.mean(jnp.tanh(OUT_SHARDINGS[name](w, x)) ** 2), args)


def test_nnx_layers_with_out_sharding() -> None:
    with jax.set_mesh(EXPLICIT):
        linear, weights = nnx.split(nnx.Linear(6, 4, rngs=nnx.Rngs(0)))
        agrees(
            lambda weights, x: jnp.mean(nnx.merge(linear, weights)(x, out_sharding=BOTH) ** 2),
            (weights, put(EXPLICIT, X, "data")),
        )
        embed, table = nnx.split(nnx.Embed(16, 4, rngs=nnx.Rngs(0)))
        agrees(
            lambda table, tokens: jnp.mean(nnx.merge(embed, table)(tokens, out_sharding=P("data")) ** 2),
            (table, put(EXPLICIT, np.arange(8), "data")),
        )


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        kernel = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp"))
        h = nn.with_logical_constraint(nn.relu(nn.Dense(8, kernel_init=kernel)(x)), ("batch", "mlp"))
        return nn.Dense(6)(h)


@pytest.mark.parametrize("net", [Net, nn.remat(Net)], ids=["plain", "remat"])
def test_flax_logical_constraints(net: Any) -> None:
    # The embedding is also split over the batch's axis, as in trainings that shard parameters to save memory.
    rules = (("batch", "data"), ("mlp", "model"), ("embed", "data"))
    with jax.set_mesh(AUTO), nn.logical_axis_rules(rules):
        params = Net().init(jax.random.key(0), jnp.ones((8, 8)))
        x = put(AUTO, np.tile(X, (1, 2))[:, :8], "data")
        agrees(lambda params, x: jnp.mean((net().apply(params, x) - x[:, :6]) ** 2), (params, x))
