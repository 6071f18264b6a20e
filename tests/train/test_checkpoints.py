"""Training with drops, jitted and donated, gives the same bits after Orbax saves and restores it, and in a scan."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcomm.train import BoundedDropState, Drop, bounded_drop
from tests.train.gradient_cases import RANKS, SEGMENT, make_mesh

STEPS = 6
REPLICATED, BY_RANK = P(), P("data")


class Training:
    """A small network on random data, jitted and donated. Parameters are equal on all ranks; `left_out` is per rank."""

    def __init__(self, dtype, accumulate, feedback):
        self.mesh = make_mesh()
        drop = Drop(0.3, segment_bytes=SEGMENT)
        self.tx = optax.chain(bounded_drop("data", drop, error_feedback=feedback), optax.adam(1e-2))
        self.specs = (BoundedDropState(BY_RANK if feedback else None), REPLICATED)
        if accumulate > 1:
            self.tx = optax.MultiSteps(self.tx, accumulate)
            self.specs = optax.MultiStepsState(REPLICATED, REPLICATED, self.specs, BY_RANK, REPLICATED)
        self.step = self.on_ranks(self.one, BY_RANK)
        init = jax.shard_map(self.tx.init, mesh=self.mesh, in_specs=REPLICATED, out_specs=self.specs, check_vma=False)
        self.init = jax.jit(init)
        random = np.random.default_rng(0)
        shapes = {"w1": (16, 64), "b1": (64,), "w2": (64, 16)}
        self.first = {name: jnp.asarray(random.standard_normal(shape) / 8, dtype) for name, shape in shapes.items()}
        self.data = random.standard_normal((STEPS, 8 * RANKS, 16)).astype(dtype)

    def on_ranks(self, function, data):
        carry = REPLICATED, self.specs
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=(*carry, data), out_specs=carry, check_vma=False)
        return jax.jit(mapped, donate_argnums=(0, 1))

    def start(self):
        """New copies of the first parameters, and the initial state."""
        params = jax.device_put(self.first, NamedSharding(self.mesh, REPLICATED))
        return jax.tree.map(jnp.copy, params), self.init(params)

    def one(self, params, state, x):
        def error(params):
            return ((jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] - x[:, ::-1]) ** 2).mean()

        updates, state = self.tx.update(jax.grad(error)(params), state, params)
        return optax.apply_updates(params, updates), state

    def go(self, carry, first, last):
        for x in self.data[first:last]:
            carry = self.step(*carry, x)
        return carry


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


CASES = [
    ("bfloat16", 1, True),
    ("float32", 2, True),
    ("bfloat16", 1, False),
]


@pytest.mark.parametrize(("dtype", "accumulate", "feedback"), CASES)
def test_a_training_gives_the_same_bits_restored_or_in_a_scan(tmp_path, dtype, accumulate, feedback):
    training = Training(dtype, accumulate, feedback)
    whole = training.go(training.start(), 0, STEPS)

    stopped = training.go(training.start(), 0, 3)  # in the middle of an accumulation
    if feedback:
        bounded = stopped[1][0] if accumulate == 1 else stopped[1].inner_opt_state[0]
        assert bounded.left_out["w1"].sharding.spec == BY_RANK
        by_rank = np.asarray(bounded.left_out["w1"], np.float32).reshape(RANKS, -1)
        assert (by_rank != by_rank[0]).any()
    with ocp.StandardCheckpointer() as keeper:
        keeper.save(tmp_path / "step3", stopped)
        keeper.wait_until_finished()
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), stopped)
        restored = keeper.restore(tmp_path / "step3", shapes)
    assert bits(restored) == bits(stopped) != bits(whole)
    assert bits(training.go(restored, 3, STEPS)) == bits(whole)

    scan = training.on_ranks(
        lambda *operands: jax.lax.scan(lambda carry, x: (training.one(*carry, x), None), operands[:2], operands[2])[0],
        P(None, "data"),
    )
    donated = training.start()
    assert bits(scan(*donated, training.data)) == bits(whole)
    assert all(leaf.is_deleted() for leaf in donated[0].values())  # the buffers were donated
