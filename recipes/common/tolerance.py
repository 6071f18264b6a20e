"""A task as `jaxcomm profile drop-bound` asks for it: its metric round by round, for a drop and a seed; its layers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import jax

from common import devices, synchronisation
from common.task import Task
from common.training import Training
from jaxcomm import train
from jaxcomm.profile import Layer
from jaxcomm.train import Drop


def rounds(make: Callable[[str], Task], drop: Drop | None, seed: int, *, steps: int) -> Iterator[float]:
    """The metric on the test data after each round of steps, without end; compiled once per drop.

    Args:
      make: the task, given the mesh axis that its layers may sum over.
      drop: what the gradients may leave out; None leaves out nothing.
      seed: of the variables and the batches.
      steps: of a round.
    """
    training = _training(make, drop)
    state = training.init(seed)
    while True:
        state, _ = training.steps(state, steps)
        yield training.score(state)[training.metric]


def layers(make: Callable[[None], Task]) -> list[Layer]:
    """The task's parameters in the order in which its score first uses them."""
    task = make(None)
    variables = jax.eval_shape(task.init, jax.random.key(0))
    return train.layers(task.score, variables["params"], variables["state"], task.test)


@functools.cache
def _training(make: Callable[[str], Task], drop: Drop | None) -> Training:
    mesh = devices.mesh()
    how = synchronisation.by_name("mlt" if drop else "jaxcomm", mesh.size, drop=drop)
    return Training(make(devices.AXIS), how, mesh)
