"""Outer steps: the outer optimizer gets the ranks' mean movement of several local steps."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomm.train import local_sgd, outer_steps

RANKS = 8


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((RANKS,), ("data",), axis_types=(AxisType.Auto,))


def drift(every, optimizer, params, moves, mesh):
    """The ranks' parameters after outer steps, if each local step subtracts `moves[step, rank]`."""
    steps = outer_steps(every, optimizer, "data")

    def run(params, moves):
        def step(carry, move):
            params, state, number = carry
            params, state = steps.update(params - move, state, number)
            return (params, state, number + 1), None

        (params, _, _), _ = lax.scan(step, (params, steps.init(params), 0), moves)
        return params

    specs = {"in_specs": (P("data"), P(None, "data")), "out_specs": P("data")}
    return jax.jit(jax.shard_map(run, mesh=mesh, check_vma=False, **specs))(params, moves)


def test_an_outer_step_hands_the_mean_move_to_the_outer_optimizer(mesh):
    params = np.ones((RANKS, 3), np.float32)
    moves = np.random.default_rng(0).standard_normal((6, RANKS, 3)).astype(np.float32)
    found = drift(3, optax.sgd(0.7, momentum=0.9, nesterov=True), params, moves, mesh)
    agreed, momentum = np.ones(3), np.zeros(3)
    for gradient in moves.reshape(2, 3, RANKS, 3).sum(axis=1).mean(axis=1):
        momentum = gradient + 0.9 * momentum
        agreed = agreed - 0.7 * (gradient + 0.9 * momentum)
    np.testing.assert_allclose(found, np.tile(agreed, (RANKS, 1)), rtol=1e-4)


def test_an_outer_step_of_one_is_local_sgd_and_nothing_moves_in_between(mesh):
    params = np.ones((RANKS, 3), np.float32)
    moves = np.random.default_rng(1).standard_normal((5, RANKS, 3)).astype(np.float32)
    found = drift(3, optax.sgd(1.0), params, moves, mesh)

    def run(params, moves):
        def step(carry, move):
            return (local_sgd(3, "data")(carry[0] - move, carry[1]), carry[1] + 1), None

        return lax.scan(step, (params, 0), moves)[0][0]

    specs = {"in_specs": (P("data"), P(None, "data")), "out_specs": P("data")}
    plain = jax.jit(jax.shard_map(run, mesh=mesh, check_vma=False, **specs))(params, moves)
    np.testing.assert_allclose(found, plain, atol=1e-5)
    assert len({np.asarray(found)[rank].tobytes() for rank in range(RANKS)}) == RANKS  # the last two steps are local


@pytest.mark.parametrize("check_vma", [True, False])
def test_parameters_and_state_may_be_donated_from_the_first_step_on(mesh, check_vma):
    steps = outer_steps(2, optax.sgd(0.7, momentum=0.9), "data")
    on_ranks = partial(jax.shard_map, mesh=mesh, check_vma=check_vma)

    def local(params, state, step):
        params = params - 0.1 * (1 + lax.axis_index("data"))
        return steps.update(params, state, step)

    update = jax.jit(on_ranks(local, in_specs=(P("data"), P(), P()), out_specs=(P("data"), P())), donate_argnums=(0, 1))
    params = jax.device_put(jnp.ones(RANKS), NamedSharding(mesh, P("data")))
    state = jax.jit(on_ranks(steps.init, in_specs=P(), out_specs=P()))(jnp.ones(1))
    for step in range(4):
        before, (params, state) = params, update(params, state, step)
        assert before.is_deleted()
    assert len({*np.asarray(params).tolist()}) == 1

    whole = jax.device_put(jnp.ones(3), NamedSharding(mesh, P()))
    eager = steps.init(whole)
    assert not {*map(id, jax.tree.leaves(eager))} & {id(whole)}
    alone = jax.jit(on_ranks(steps.update, in_specs=(P(), P(), P()), out_specs=(P(), P())), donate_argnums=(0, 1))
    np.testing.assert_array_equal(alone(whole, eager, 0)[0], np.ones(3))


@pytest.mark.parametrize("every", [0, 2.5])
def test_an_outer_step_needs_an_inner_one(every):
    with pytest.raises(ValueError, match=f"outer_steps: every is {every}; it must be a whole number of steps"):
        outer_steps(every, optax.sgd(1.0), "data")


def test_counters_are_no_parameters():
    with pytest.raises(TypeError, match=r"'norm/count' is int32; an outer optimizer moves floating-point .*\n  Cure: "):
        outer_steps(1, optax.sgd(1.0), "data").init({"norm": {"count": jnp.zeros((), jnp.int32)}})
