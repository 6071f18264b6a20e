"""`jaxcomm.nnx` and `jaxcomm.equinox` compared with the functions of Flax nnx and Equinox that they replace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm import ffi

nnx = pytest.importorskip("flax.nnx")
eqx = pytest.importorskip("equinox")

pytestmark = pytest.mark.usefixtures("no_plan")
MESH = Mesh(jax.devices()[:4], ("data",))
X = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
Y = X.sum(1, keepdims=True)
BATCH = jax.device_put((X, Y), NamedSharding(MESH, P("data")))
STEPS = 2


def equal(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, expected)


class Net(nnx.Module):
    """The statistics of its BatchNorm are those of the whole batch if it has an axis."""

    def __init__(self, rate: float, axis: str | None) -> None:
        rngs = nnx.Rngs(0)
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, axis_name=axis, momentum=0.5, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.frozen = nnx.Variable(jnp.full(8, 0.1))
        self.second = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.second(self.dropout(nnx.gelu(self.norm(self.first(x)))) * self.frozen)


def loss_of_net(net: Any, x: Any, y: Any) -> Any:
    out = net(x)
    return jnp.mean((out - y) ** 2), out


def nnx_in_shard_map(step: Callable[..., Any], check_vma: bool) -> Callable[..., Any]:
    specs = (P(), P(), P("data"), P("data"))
    return nnx.jit(nnx.shard_map(step, mesh=MESH, in_specs=specs, out_specs=(P(), P("data")), check_vma=check_vma))


WAYS: dict[str, Callable[..., Any]] = {
    "nnx.jit": nnx.jit,
    "nnx.shard_map": partial(nnx_in_shard_map, check_vma=True),
    "nnx.shard_map, no check_vma": partial(nnx_in_shard_map, check_vma=False),
}


def trained(net: Any, gradient: Callable[..., Any], way: Callable[..., Any], batch: Any) -> tuple[Any, Any]:
    """The results of the last step, and the state after it."""

    def step(net: Any, optimizer: Any, x: Any, y: Any) -> Any:
        (value, out), grads = gradient(loss_of_net, has_aux=True)(net, x, y)
        optimizer.update(net, grads)
        return value, out

    optimizer = nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param)
    step = way(step)
    for _ in range(STEPS):
        results = step(net, optimizer, *batch)
    state = nnx.as_pure(nnx.state((net, optimizer), nnx.Not(nnx.RngKey)))
    return jax.block_until_ready(results), state


@functools.cache
def trained_with_nnx() -> tuple[Any, Any]:
    return trained(Net(0.0, None), nnx.value_and_grad, nnx.jit, (X, Y))


@pytest.mark.parametrize("way", WAYS)
def test_an_nnx_model_trains_as_with_nnx(way: str) -> None:
    expected = trained_with_nnx()
    found = trained(Net(0.0, "data"), partial(jaxcomm.nnx.value_and_grad, axis_name="data"), WAYS[way], BATCH)
    equal(found, expected)
    (site,) = [site for site in ffi.sites() if site["calls"]]
    params = sum(x.nbytes for x in jax.tree.leaves(nnx.state(Net(0.0, None), nnx.Param)))
    assert site["calls"] == STEPS and site["bytes"] == params + 2 * 8 * 4 + 4  # no frozen Variable


@pytest.mark.parametrize("way", ["nnx.jit", "nnx.shard_map"])
def test_dropout_has_a_mask_of_its_own_on_each_rank(way: str) -> None:
    net = Net(0.5, "data")
    net.first.kernel.set_value(jnp.zeros((4, 8)))  # rows are equal, but for dropout
    net.norm.bias.set_value(jnp.ones(8))
    key, kernel = jax.random.key_data(net.dropout.rngs.key.get_value()), net.second.kernel.get_value()
    (_, out), _ = trained(net, partial(jaxcomm.nnx.value_and_grad, axis_name="data"), WAYS[way], BATCH)
    first_rows = np.asarray(out).reshape(4, 4)
    assert len({tuple(row) for row in first_rows.tolist()}) == 4
    assert (jax.random.key_data(net.dropout.rngs.key.get_value()) == key).all()
    assert int(net.dropout.rngs.count.get_value()) == STEPS
    assert not np.allclose(net.second.kernel.get_value(), kernel)


def test_nnx_filters_of_several_arguments() -> None:
    def loss(scale: Any, net: Any, x: Any) -> Any:
        return scale * jnp.mean(net(x) ** 2)

    argnums = (0, nnx.DiffState(1, nnx.All(nnx.Param, nnx.PathContains("second"))))
    expected = nnx.jit(nnx.grad(loss, argnums=argnums))(2.0, Net(0.0, None), X)
    found = jaxcomm.nnx.grad(loss, "data", argnums=argnums)(2.0, Net(0.0, "data"), BATCH[0])
    equal(found, expected)
    assert [*found[1]] == ["second"]


def test_nnx_streams_that_were_split() -> None:
    def loss(scale: Any, rngs: Any, x: Any) -> Any:
        noise = nnx.vmap(lambda rngs: rngs.noise.normal(()))(rngs)
        return scale * jnp.mean(x), jnp.broadcast_to(noise, (len(x), 3))

    rngs = nnx.Rngs(noise=0).split(3)
    (_, noise), _ = jaxcomm.nnx.value_and_grad(loss, "data", has_aux=True)(1.0, rngs, BATCH[0])
    assert len({*np.asarray(noise).ravel().tolist()}) == 4 * 3


MODEL = eqx.nn.MLP(4, 1, 8, 1, key=jax.random.key(0))


def loss_of_model(model: Any, x: Any, y: Any) -> Any:
    out = jax.vmap(model)(x)
    return jnp.mean((out - y) ** 2), out


def eqx_in_shard_map(gradient: Callable[..., Any], check_vma: bool) -> Callable[..., Any]:
    def call(model: Any, x: Any, y: Any) -> Any:
        arrays, static = eqx.partition(model, eqx.is_array)
        mapped = jax.shard_map(
            lambda arrays, x, y: gradient(eqx.combine(arrays, static), x, y),
            mesh=MESH,
            in_specs=(P(), P("data"), P("data")),
            out_specs=((P(), P("data")), P()),
            check_vma=check_vma,
        )
        return mapped(arrays, x, y)

    return eqx.filter_jit(call)


@pytest.mark.parametrize(
    "way",
    [
        eqx.filter_jit,
        partial(eqx_in_shard_map, check_vma=True),
        partial(eqx_in_shard_map, check_vma=False),
    ],
    ids=["eqx.filter_jit", "jax.shard_map", "jax.shard_map, no check_vma"],
)
def test_an_equinox_model_has_the_gradients_of_equinox(way: Callable[..., Any]) -> None:
    expected = eqx.filter_value_and_grad(loss_of_model, has_aux=True)(MODEL, X, Y)
    found = way(jaxcomm.equinox.value_and_grad(loss_of_model, "data", has_aux=True))(MODEL, *BATCH)
    equal(found, expected)
    assert found[1].activation is None
    (site,) = [site for site in ffi.sites() if site["calls"]]
    assert site["calls"] == 1


def test_an_equinox_gradient_without_the_loss() -> None:
    expected = eqx.filter_grad(lambda *args: loss_of_model(*args)[0])(MODEL, X, Y)
    equal(jaxcomm.equinox.grad(lambda *args: loss_of_model(*args)[0], "data")(MODEL, *BATCH), expected)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: Net(0.5, None), "rngs.count.value is uint32, which has no gradient.*call jaxcomm.nnx.value_and_grad"),
        (lambda: MODEL, "activation is of type custom_jvp; .*call jaxcomm.equinox.value_and_grad"),
    ],
    ids=["nnx", "equinox"],
)
def test_the_error_for_a_model_names_the_function_for_it(model: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=f"(?s)^jaxcomm.value_and_grad: argument 0.*{message}"):
        jaxcomm.value_and_grad(lambda model, x, y: 0.0, "data")(model(), *BATCH)
