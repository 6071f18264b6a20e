"""Digits in a step that `jax.jit` partitions by the shardings of its arguments; nothing of it is in a `jax.shard_map`.

    python recipes/sharded.py
    python recipes/sharded.py --sync bsp

XLA alone (`bsp`) makes the all-reduce of such a step's gradients. `jaxcomm.value_and_grad` in place of
`jax.value_and_grad` is the one line that gives it to jaxcomm and its plan. The batches are those of late_rank.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from common import devices

devices.prepare()

import jax
import jax.numpy as jnp
import optax
from absl import flags
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from common import recipe
from common.devices import AXIS, place
from common.digits import digits
from common.synchronisation import Synchronisation
from common.task import Task, Tree

UNITS = flags.DEFINE_integer("units", 1024, "of each hidden layer; 1024 make 4.3 MiB of gradients", lower_bound=1)


class State(NamedTuple):
    """A run: all that its next step depends on, the same on all workers."""

    seed: jax.Array
    step: jax.Array
    variables: Tree
    optimizer: Tree


class Sharded:
    """Trains a task whose data are split over the mesh; the same on any number of devices."""

    def __init__(self, task: Task, how: Synchronisation, mesh: Mesh) -> None:
        """Puts the task's data on the mesh, a row of examples for each worker."""
        split, same = NamedSharding(mesh, P(AXIS)), NamedSharding(mesh, P())
        rows = partial(_rows, workers=mesh.size)
        self._task, self._differentiate = task, _value_and_grad(planned=how.planned)
        self._train, self._test = (place(jax.tree.map(rows, part), split) for part in (task.train, task.test))
        self._init = jax.jit(self._start, out_shardings=same)
        self._run = jax.jit(self._steps, static_argnames="count", donate_argnums=0, out_shardings=same)
        self._score = jax.jit(self._measure, out_shardings=same)

    def init(self, seed: int) -> State:
        """The state before the first step."""
        return self._init(jnp.uint32(seed))

    def steps(self, state: State, count: int) -> tuple[State, jax.Array]:
        """The state after `count` more steps, and each step's loss [count]. Donates `state`."""
        return self._run(state, self._train, count=count)

    def scalars(self) -> dict[str, float]:
        """Scalars for TensorBoard that the collectives of this process have recorded so far."""
        return jaxcomm.metrics.scalars()

    def score(self, state: State) -> dict[str, float]:
        """The metric on the test data."""
        return {self._task.metric: float(self._score(state.variables, self._test))}

    def _start(self, seed: jax.Array) -> State:
        variables = self._task.init(jax.random.key(seed))
        return State(seed, jnp.uint32(0), variables, self._task.optimizer.init(variables["params"]))

    def _steps(self, state: State, data: Tree, count: int) -> tuple[State, jax.Array]:
        return jax.lax.scan(lambda state, _: self._step(state, data), state, length=count)

    def _step(self, state: State, data: Tree) -> tuple[State, jax.Array]:
        batch = self._batch(data, jax.random.fold_in(jax.random.key(state.seed), state.step))
        params = state.variables["params"]
        (loss, layers), grads = self._differentiate(self._task.loss)(params, state.variables["state"], batch)
        updates, optimizer = self._task.optimizer.update(grads, state.optimizer, params)
        variables = {"params": optax.apply_updates(params, updates), "state": layers}
        return State(state.seed, state.step + 1, variables, optimizer), loss

    def _batch(self, data: Tree, key: jax.Array) -> Tree:
        """Examples of every worker's row, in one dimension."""
        workers = len(jax.tree.leaves(data)[0])
        keys = jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(workers))
        return jax.tree.map(jnp.concatenate, jax.vmap(self._task.sample)(data, keys))

    def _measure(self, variables: Tree, data: Tree) -> jax.Array:
        total, examples = jax.vmap(partial(self._task.score, variables["params"], variables["state"]))(data)
        return total.sum() / examples.sum()


def _value_and_grad(*, planned: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For a loss of (params, state, batch) with a state: jaxcomm's, or that of jax."""
    if planned:
        return lambda loss: jaxcomm.value_and_grad(loss, AXIS, has_aux=True, in_specs=(P(), P(), P(AXIS)))
    return lambda loss: jax.value_and_grad(loss, has_aux=True)


def _rows(leaf: Any, workers: int) -> Any:
    """An array without the few last examples that would not give every worker the same number, a row for each."""
    return leaf[: len(leaf) // workers * workers].reshape(workers, -1, *leaf.shape[1:])


def main() -> None:
    """Runs the recipe."""
    recipe.run("sharded", lambda _: digits(UNITS.value), own=(UNITS,), training=Sharded)


if __name__ == "__main__":
    flags.register_validator("sync", lambda sync: sync in ("jaxcomm", "bsp"), "it must be jaxcomm or bsp here")
    recipe.main(main)
