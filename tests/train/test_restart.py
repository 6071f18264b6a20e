"""A training that restarts from a checkpoint, at any phase of the groups' period, continues with the same bits."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm.train import OuterState, divide_and_shuffle, group_table, outer_steps

RANKS, FEATURES, STEPS = 8, 5, 9
PERIOD = [[[i, 4 + i], [r for r in range(4) if r != i], [4 + r for r in range(4) if r != i]] for i in range(4)]
OTHER = [[[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]]]


class State(NamedTuple):
    """The full state of a training. All fields but the step and the table have one row per rank."""

    params: Any
    optimizer: Any
    swa: Any
    outer: OuterState
    step: Any
    table: Any


SPECS = State(P("data"), P("data"), P("data"), P("data"), P(), P())
local = optax.adam(0.05)
outer = outer_steps(3, optax.sgd(0.7, momentum=0.9, nesterov=True), "data")
average = divide_and_shuffle(PERIOD, "data")


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((RANKS,), ("data",), axis_types=(AxisType.Auto,))


@pytest.fixture(scope="module")
def batches():
    random = np.random.default_rng(0)
    x = random.standard_normal((STEPS, RANKS, 4, FEATURES)).astype(np.float32)
    return x, (x @ np.arange(FEATURES, dtype=np.float32) + 1).astype(np.float32)


def one(tree):
    """A rank's values, without the axis of ranks."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


def row(tree):
    return jax.tree.map(lambda leaf: leaf[None], tree)


@pytest.fixture(scope="module")
def start(mesh):
    def init(_):
        params = {"w": jnp.zeros(FEATURES), "b": jnp.zeros(())}
        return row((params, local.init(params), params, outer.init(params)))

    made = jax.jit(jax.shard_map(init, mesh=mesh, in_specs=P("data"), out_specs=P("data")))(jnp.zeros(RANKS))
    return lambda table: State(*jax.tree.map(jnp.copy, made), jnp.int32(0), jnp.asarray(table))


@pytest.fixture(scope="module")
def train_step(mesh):
    def step(state, x, y):
        params, optimizer, swa, outer_state = one(tuple(state[:4]))

        def loss(params):
            return jnp.mean((x[0] @ params["w"] + params["b"] - y[0]) ** 2)

        updates, optimizer = local.update(jax.grad(loss)(params), optimizer, params)
        params = average(optax.apply_updates(params, updates), state.step, state.table)
        params, outer_state = outer.update(params, outer_state, state.step)
        swa = optax.incremental_update(params, swa, step_size=0.2)
        return State(*row((params, optimizer, swa, outer_state)), state.step + 1, state.table)

    specs = {"in_specs": (SPECS, P("data"), P("data")), "out_specs": SPECS}
    return jax.jit(jax.shard_map(step, mesh=mesh, check_vma=False, **specs), donate_argnums=0)


def test_any_phase_of_the_period_gives_the_same_bits(mesh, batches, start, train_step, tmp_path):
    """Each rank's parameters are one row of a sharded array. They are saved and restored with this sharding."""
    with ocp.StandardCheckpointer() as checkpointer:
        state = start(group_table(PERIOD))
        for step in range(STEPS):
            checkpointer.save(tmp_path / str(step), state)
            checkpointer.wait_until_finished()  # the step donates the state
            state = train_step(state, *(part[step] for part in batches))
            if step == 4:
                state = state._replace(table=jnp.asarray(group_table(OTHER)))
        whole = jax.tree.map(np.asarray, state)
        like = jax.tree.map(
            lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec)),
            whole,
            State(*(jax.tree.map(lambda _, spec=spec: spec, part) for part, spec in zip(whole, SPECS, strict=True))),
        )
        for begin in range(STEPS):
            state = checkpointer.restore(tmp_path / str(begin), like)
            assert state.params["w"].sharding.spec == P("data")
            for step in range(begin, STEPS):
                state = train_step(state, *(part[step] for part in batches))
                if step == 4:
                    state = state._replace(table=jnp.asarray(group_table(OTHER)))
            jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, state), whole)


def test_the_running_averages_of_all_ranks_become_one_model(mesh, batches, start, train_step):
    """The source's SWA by Optax and jaxcomm, compared with numpy."""
    state = start(group_table(PERIOD))
    wanted = np.asarray(state.params["w"], np.float64)
    for step in range(STEPS):
        state = train_step(state, *(part[step] for part in batches))
        wanted = 0.2 * np.asarray(state.params["w"], np.float64) + 0.8 * wanted
    np.testing.assert_allclose(state.swa["w"], wanted, rtol=1e-5)
    final = jax.jit(
        jax.shard_map(lambda swa: jaxcomm.pmean(swa, "data"), mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    )(state.swa)
    np.testing.assert_allclose(final["w"], np.tile(wanted.mean(axis=0), (RANKS, 1)), rtol=1e-5)
    assert len({final["w"][rank].tobytes() for rank in range(RANKS)}) == 1
