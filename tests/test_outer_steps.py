"""Outer steps: what several local steps come to, handed to an outer optimizer."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxcomm.train import local_sgd, outer_steps

RANKS = 8


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((RANKS,), ("data",), axis_types=(AxisType.Auto,))


def drift(every, optimizer, params, moves, mesh):
    """Each rank moves by `moves[step, rank]` in every step; what the outer steps make of it."""
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
    assert len({np.asarray(found)[rank].tobytes() for rank in range(RANKS)}) == RANKS  # two steps on, each on its own


def test_an_outer_step_needs_an_inner_one():
    with pytest.raises(ValueError, match="every is 0; it must be at least 1 step"):
        outer_steps(0, optax.sgd(1.0), "data")
