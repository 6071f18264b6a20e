"""A task trained by all workers of a mesh: one jitted call runs many steps, each worker's part inside `jax.shard_map`.

Where a synchronisation averages variables, every worker has its own: each leaf gets a first dimension of workers, which
the mesh axis divides. Otherwise all have the same. Either way the run's average over time (SWA) is kept beside them.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from common.devices import AXIS, place
from common.synchronisation import Synchronisation
from common.task import Task, Tree
from jaxcomm import train


class Worker(NamedTuple):
    """A worker's state: its variables, the states of its optimizer and of its averaging with others, its SWA."""

    variables: Tree
    optimizer: Tree
    average: Tree
    swa: Tree


class State(NamedTuple):
    """A run: all that its next step depends on. `step` counts those taken; `seed` gives variables and batches."""

    seed: jax.Array
    step: jax.Array
    worker: Worker

    def with_average(self, average: np.ndarray) -> State:
        """The same, but the averaging of all workers goes on from this: their table of groups, for example."""
        before = self.worker.average
        everywhere = place(np.broadcast_to(average, before.shape), before.sharding)
        return self._replace(worker=self.worker._replace(average=everywhere))


class Training:
    """Compiles each function once for all seeds. Trainings with the same seed start alike and see the same batches."""

    def __init__(self, task: Task, synchronisation: Synchronisation, mesh: Mesh, *, swa: float = 0.98) -> None:
        """Puts the task's data on the mesh.

        Args:
          task: what is learnt.
          synchronisation: how.
          mesh: the workers, along `AXIS`.
          swa: what remains of the average over time in a step, once it has lasted 1 / (1 - swa) steps.
        """
        self._task, self._synchronisation, self._swa = task, synchronisation, swa
        self._optimizer = optax.chain(synchronisation.gradients, task.optimizer)
        self._own = synchronisation.average is not None  # variables
        layout = State(P(), P(), P(AXIS) if self._own else P())
        split = NamedSharding(mesh, P(AXIS))
        self._train, self._test = (place(_even(part, mesh.size), split) for part in (task.train, task.test))
        mapped = partial(jax.shard_map, mesh=mesh, check_vma=False)
        self._init = jax.jit(mapped(self._start, in_specs=P(), out_specs=layout))
        self._score = jax.jit(mapped(self._measure, in_specs=(layout, P(AXIS)), out_specs=P()))

        @partial(jax.jit, static_argnames="count", donate_argnums=0)
        def run(state: State, data: Tree, count: int) -> tuple[State, jax.Array]:
            steps = partial(self._steps, count=count)
            return mapped(steps, in_specs=(layout, P(AXIS)), out_specs=(layout, P()))(state, data)

        self._run = run

    @property
    def metric(self) -> str:
        """Name of the task's metric."""
        return self._task.metric

    def init(self, seed: int) -> State:
        """The state before the first step, made on the workers: the same on each."""
        return self._init(jnp.uint32(seed))

    def steps(self, state: State, count: int) -> tuple[State, jax.Array]:
        """The state after `count` more steps, and each step's loss [count], the mean over workers. Donates `state`."""
        library = jaxcomm.replace_lax() if self._synchronisation.planned else contextlib.nullcontext()
        with library:
            return self._run(state, self._train, count)

    def scalars(self) -> dict[str, float]:
        """Scalars for TensorBoard that the collectives of this process have recorded so far."""
        return jaxcomm.metrics.scalars()

    def score(self, state: State) -> dict[str, float]:
        """The metric on the test data of the workers' mean variables, and `swa` of their mean average over time.

        Where workers have their own variables, `apart` is their consensus distance.
        """
        return {name: float(value) for name, value in self._score(state, self._test).items()}

    def _start(self, seed: jax.Array) -> State:
        variables = self._task.init(jax.random.key(seed))
        average = self._synchronisation.average
        optimizer = self._optimizer.init(variables["params"])
        worker = Worker(variables, optimizer, average and average.init(variables), variables)
        return State(seed, jnp.uint32(0), self._row(worker))

    def _steps(self, state: State, data: Tree, count: int) -> tuple[State, jax.Array]:
        worker, losses = lax.scan(
            lambda worker, step: self._step(worker, step, data, state.seed),
            self._unrow(state.worker),
            state.step + jnp.arange(count, dtype=jnp.uint32),
        )
        return State(state.seed, state.step + count, self._row(worker)), lax.pmean(losses, AXIS)

    def _step(self, worker: Worker, step: jax.Array, data: Tree, seed: jax.Array) -> tuple[Worker, jax.Array]:
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), lax.axis_index(AXIS))
        batch = self._task.sample(data, key)
        params, state = worker.variables["params"], worker.variables["state"]
        (loss, state), gradients = jax.value_and_grad(self._task.loss, has_aux=True)(params, state, batch)
        updates, optimizer = self._optimizer.update(gradients, worker.optimizer, params)
        variables = {"params": optax.apply_updates(params, updates), "state": state}
        average = worker.average
        if self._synchronisation.average is not None:
            variables, average = self._synchronisation.average.update(variables, average, step)
        weight = jnp.maximum(1 - self._swa, 1 / (step + 1))  # at first the plain mean, without the variables before
        swa = optax.incremental_update(variables, worker.swa, weight)
        return Worker(variables, optimizer, average, swa), loss

    def _measure(self, state: State, data: Tree) -> dict[str, jax.Array]:
        worker = self._unrow(state.worker)

        def metric(variables: Tree) -> jax.Array:
            total, examples = jaxcomm.psum(self._task.score(variables["params"], variables["state"], data), AXIS)
            return total / examples

        if not self._own:
            return {self._task.metric: metric(worker.variables), "swa": metric(worker.swa)}
        mean, swa = jaxcomm.pmean((worker.variables, worker.swa), AXIS)
        apart = train.consensus_distance(worker.variables["params"], AXIS)
        return {self._task.metric: metric(mean), "swa": metric(swa), "apart": apart}

    def _row(self, worker: Worker) -> Worker:
        return jax.tree.map(lambda leaf: leaf[None], worker) if self._own else worker

    def _unrow(self, worker: Worker) -> Worker:
        return jax.tree.map(lambda leaf: leaf[0], worker) if self._own else worker


def _even(data: Tree, workers: int) -> Tree:
    """The data without the few last examples that would not give every worker the same number."""
    return jax.tree.map(lambda leaf: leaf[: len(leaf) // workers * workers], data)
