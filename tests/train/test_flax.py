"""Flax trainings (linen and nnx) whose gradients and BatchNorm statistics follow a plan: results as with lax."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training import train_state
from jax import lax

import jaxcomm
from jaxcomm import ffi, train
from jaxcomm.collectives.buckets import named
from jaxcomm.measure import measure_gradients
from tests.collectives.lax_cases import P, sharded
from tests.collectives.plans import SPECS, step_plan

random = np.random.default_rng(5)
X = random.standard_normal((64, 6)).astype(np.float32)
Y = np.sin(X.sum(1, keepdims=True)).astype(np.float32)
STEPS = 3
Trees = Callable[[Any], Any]


class Way(NamedTuple):
    """A way to average gradients: functions of the parameters before the loss, and of the gradients after it."""

    params: Trees
    grads: Trees


def same(tree: Any) -> Any:
    return tree


LAX = Way(same, partial(lax.pmean, axis_name="d"))
WAYS = {
    "one call": Way(same, partial(jaxcomm.pmean, axis_name="d")),
    "buckets": Way(same, partial(train.pmean_buckets, axis_name="d")),
    "buckets in the backward pass": Way(partial(train.pmean_in_backward, axis_name="d"), same),
}


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Dense(16)(x)
        x = nn.BatchNorm(use_running_average=False, axis_name="d")(x)
        return nn.Dense(1)(nn.gelu(x))


class NnxNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(6, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, axis_name="d", rngs=rngs)
        self.second = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.second(nnx.gelu(self.norm(self.first(x))))


class Case(NamedTuple):
    """A training: its initial state, step (state, x, y) -> state, parameters, and a rank's loss."""

    state: Any
    step: Callable[[Any, Any, Any], Any]
    params: Any
    loss: Callable[..., Any]


class State(train_state.TrainState):
    batch_stats: Any


def linen(way: Way) -> Case:
    net = LinenNet()
    variables = net.init(jax.random.key(0), X[:1])
    state = State.create(apply_fn=net.apply, tx=optax.sgd(0.1, 0.9), **variables)

    def loss(params: Any, x: Any, y: Any, batch_stats: Any = variables["batch_stats"]) -> Any:
        out, new = net.apply({"params": way.params(params), "batch_stats": batch_stats}, x, mutable=["batch_stats"])
        return jnp.mean((out - y) ** 2), new["batch_stats"]

    def step(state: State, x: Any, y: Any) -> State:
        grads, batch_stats = jax.grad(loss, has_aux=True)(state.params, x, y, state.batch_stats)
        return state.apply_gradients(grads=way.grads(grads), batch_stats=batch_stats)

    return Case(state, step, state.params, lambda *args: loss(*args)[0])


def nnx_(way: Way) -> Case:
    net = NnxNet(nnx.Rngs(0))
    graph, state = nnx.split((net, nnx.Optimizer(net, optax.sgd(0.1, 0.9), wrt=nnx.Param)))
    net_graph, params, rest = nnx.split(net, nnx.Param, ...)

    def loss(params: Any, x: Any, y: Any, rest: Any = rest) -> Any:
        net = nnx.merge(net_graph, way.params(params), rest, copy=True)  # a copy, because BatchNorm writes to `rest`
        return jnp.mean((net(x) - y) ** 2), nnx.state(net, nnx.BatchStat)

    def step(state: Any, x: Any, y: Any) -> Any:
        net, optimizer = nnx.merge(graph, state)
        _, params, rest = nnx.split(net, nnx.Param, ...)
        grads, batch_stats = jax.grad(loss, has_aux=True)(params, x, y, rest)
        optimizer.update(net, way.grads(grads))
        nnx.update(net, batch_stats)
        return nnx.state((net, optimizer))

    return Case(state, step, params, lambda *args: loss(*args)[0])


LIBRARIES = {"linen": linen, "nnx": nnx_}


pytestmark = pytest.mark.usefixtures("no_plan")


def trained(case: Case) -> list[Any]:
    """The leaves of the state after STEPS steps."""
    step = jax.jit(sharded(case.step, (P(), P("d"), P("d")), P(), False))
    state = case.state
    for _ in range(STEPS):
        state = step(state, X, Y)
    return jax.tree.leaves(jax.block_until_ready(state))


@functools.cache
def trained_with_lax(library: str) -> list[Any]:
    results = trained(LIBRARIES[library](LAX))
    assert not [site for site in ffi.sites() if site["calls"]]
    return results


@pytest.mark.parametrize(("way", "replaced"), [("one call", False), *((way, True) for way in WAYS)])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_training_is_that_of_lax(library: str, way: str, replaced: bool) -> None:
    expected = trained_with_lax(library)
    case = LIBRARIES[library](WAYS[way])
    plan = step_plan(case.params, [2, 3, 1], (0, None, SPECS["straggler"]))
    with jaxcomm.use_plan(plan), jaxcomm.replace_lax() if replaced else contextlib.nullcontext():
        results = trained(case)
    for ours, theirs in zip(results, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    sites = [site for site in ffi.sites() if site["calls"]]
    assert {site["plan"] for site in sites} == {plan.hash[:8]}
    of_gradients = {"psum"} if way == "one call" else {f"psum bucket {i} of 3" for i in (1, 2, 3)}
    assert {site["name"] for site in sites} == of_gradients | ({"psum"} if replaced else set())
    of_norm = [site for site in sites if site["name"] == "psum" and site["bytes"] < 1000 and way != "one call"]
    assert bool(of_norm) == (replaced and way != "one call")
    for site in sites:
        assert site["calls"] % STEPS == 0 and site["failed"] == 0


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_profile_has_the_names_of_the_gradients(library: str) -> None:
    case = LIBRARIES[library](LAX)
    buckets = measure_gradients(case.loss, case.params, X[:8], Y[:8], devices=2, steps=1, axis_name="d")
    assert {bucket.name: bucket.bytes for bucket in buckets} == {
        name: array.nbytes for name, array in named(case.params).items()
    }
