"""A Flax training in all processes of a job: by jaxcomm and by lax, and from a checkpoint on.

Words: how many steps, and a folder. Where the folder has a checkpoint, the training goes on from it. Otherwise it is by
jaxcomm, with a checkpoint in its middle, then again by lax for as many steps as losses are kept. Reports the losses,
the digest of the bits of a process's ranks, and what a process holds.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from tests.processes import jobs
from tests.processes.resources import held

ROWS, FEATURES, UNITS = 16, 8, 32
LOOKS = 10  # at what the process holds
KEPT = 300  # losses


class Net(nn.Module):
    """Two layers, smooth, so that sums unlike in the last bit do not send two trainings separate ways."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(1)(nn.gelu(nn.Dense(UNITS)(x)))


class State(NamedTuple):
    """Replicated, but for `own`: the sum of a rank's losses, [1] on each."""

    step: Any
    params: Any
    optimizer: Any
    own: Any


class Training:
    """A step by a `pmean`, jitted over all devices of the job."""

    def __init__(self, pmean: Callable[[Any, str], Any]) -> None:
        mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        specs = State(P(), P(), P(), P("data"))
        mapped = partial(jax.shard_map, mesh=mesh, check_vma=False)
        self.pmean, self.net, self.optimizer = pmean, Net(), optax.sgd(0.05, 0.9)
        self.start = jax.jit(mapped(self._start, in_specs=(), out_specs=specs))
        self.step = jax.jit(mapped(self._step, in_specs=(specs,), out_specs=(specs, P())), donate_argnums=0)
        self.shardings = [NamedSharding(mesh, spec) for spec in specs]

    def _start(self) -> State:
        params = self.net.init(jax.random.key(0), jnp.ones((1, FEATURES)))
        return State(jnp.uint32(0), params, self.optimizer.init(params), jnp.zeros(1))

    def _step(self, state: State) -> tuple[State, jax.Array]:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(1), state.step), lax.axis_index("data"))
        x = jax.random.normal(key, (ROWS, FEATURES))
        y = jnp.sin(x[:, :1])
        own, grads = jax.value_and_grad(lambda params: jnp.mean((self.net.apply(params, x) - y) ** 2))(state.params)
        loss, grads = self.pmean((own, grads), "data")
        updates, optimizer = self.optimizer.update(grads, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        return State(state.step + 1, params, optimizer, state.own + own), loss


class Checkpoint:
    """The one checkpoint of a folder."""

    def __init__(self, folder: Path) -> None:
        self._manager = ocp.CheckpointManager(folder)

    def step(self) -> int | None:
        """Where it is, if there is one."""
        return self._manager.latest_step()

    def save(self, state: State) -> None:
        self._manager.save(int(state.step), args=ocp.args.StandardSave(state))
        self._manager.wait_until_finished()

    def restore(self, training: Training) -> State:
        shapes = jax.eval_shape(training.start)
        placed = State(
            *(
                jax.tree.map(partial(jax.ShapeDtypeStruct.update, sharding=sharding), shape)
                for shape, sharding in zip(shapes, training.shardings, strict=True)
            )
        )
        return self._manager.restore(self.step(), args=ocp.args.StandardRestore(placed))


def digest(state: State) -> str:
    """Of the bits of this process's ranks."""
    bits = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        for shard in leaf.addressable_shards:
            bits.update(np.asarray(shard.data).tobytes())
    return bits.hexdigest()


def train(case: str, training: Training, state: State, steps: int, save: Callable[[State], None] | None = None) -> None:
    """Trains up to a number of steps, saves in their middle, and reports."""
    start, losses, looks = time.perf_counter(), [], []
    for step in range(int(state.step) + 1, steps + 1):
        state, loss = training.step(state)
        found = float(loss)
        if len(losses) < KEPT:
            losses.append(found)
        if save is not None and step == steps // 2:
            save(state)
        if step % (steps // LOOKS) == 0:
            looks.append(held())
    seconds = time.perf_counter() - start
    jobs.report(case, digest=digest(state), losses=losses, held=looks, seconds=seconds)


def main(steps: int, folder: Path) -> None:
    jax.distributed.initialize()
    training, checkpoint = Training(jaxcomm.pmean), Checkpoint(folder)
    if checkpoint.step() is not None:
        train("resumed", training, checkpoint.restore(training), steps)
        return
    train("jaxcomm", training, training.start(), steps, checkpoint.save)
    by_lax = Training(lax.pmean)
    train("lax", by_lax, by_lax.start(), min(steps, KEPT))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
