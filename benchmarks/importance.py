"""Shares of a gradient, and of the optimizer's step, that lie in the segments with the least gradient.

    python benchmarks/importance.py

Trains the tasks of the convergence study as BSP does, with one seed. MLT leaves out the segments with the least
gradient. Prints the shares of the gradient's and of the step's squared norm that these segments hold, and the share of
them that is among the least again a twentieth of the training later. All are means over the training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import convergence
import jax
import jax.numpy as jnp
import numpy as np
import optax

from common.task import Task
from jaxcomm.train import Drop

RATES = {"digits": 0.1, "language-sgd": 0.1, "language-adam": 0.006}  # as the study chose them
SHARES = (0.1, 0.2, 0.3)
WORKERS = 8
MEASUREMENTS = 20


class Segments(NamedTuple):
    """One tensor's gradient and the optimizer's update, each [segments, elements]."""

    gradient: np.ndarray
    update: np.ndarray

    def least(self, share: float) -> np.ndarray:
        """The numbers of the segments that MLT leaves out."""
        count = Drop(share, segment_bytes=convergence.SEGMENT).dropped("", jnp.asarray(self.gradient))
        return np.argsort(np.abs(self.gradient).mean(axis=1))[:count]


def main() -> None:
    """Prints a row per task and share."""
    print("| task | left out | of the gradient's squared norm | of the step's squared norm | the same the next time |")
    print("|---|---|---|---|---|")
    for name, rate in RATES.items():
        study = convergence.STUDIES[name]
        found = [*train(study.make(None, rate), study.steps)]
        for share in SHARES:
            means = np.mean([compare(now, later, share) for now, later in pairwise(found)], axis=0)
            print(f"| {name} | {share:.0%} | {' | '.join(f'{each:.1%}' for each in means)} |", flush=True)


def train(task: Task, steps: int) -> Iterator[list[Segments]]:
    """Yields the segments of every tensor, at twenty steps of the training."""
    variables = jax.jit(task.init)(jax.random.key(0))
    optimizer = task.optimizer.init(variables["params"])
    data = jax.tree.map(jnp.asarray, task.train)

    @jax.jit
    def step(variables: Any, optimizer: Any, number: jax.Array) -> tuple[Any, Any, Any, Any]:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(1), number), WORKERS)
        batch = jax.tree.map(lambda *parts: jnp.concatenate(parts), *(task.sample(data, key) for key in keys))
        params = variables["params"]
        gradients, state = jax.grad(task.loss, has_aux=True)(params, variables["state"], batch)
        updates, optimizer = task.optimizer.update(gradients, optimizer, params)
        return {"params": optax.apply_updates(params, updates), "state": state}, optimizer, gradients, updates

    for number in range(steps):
        variables, optimizer, *made = step(variables, optimizer, jnp.uint32(number))
        if (number + 1) % max(1, steps // MEASUREMENTS) == 0:
            yield [Segments(*map(cut, both)) for both in zip(*map(jax.tree.leaves, made), strict=True)]


def cut(x: jax.Array) -> np.ndarray:
    """The segments of a float32 tensor; the last one is padded with zeros."""
    flat, elements = np.asarray(x).reshape(-1), convergence.SEGMENT // 4
    return np.pad(flat, (0, -len(flat) % elements)).reshape(-1, elements)


def compare(now: Sequence[Segments], later: Sequence[Segments], share: float) -> tuple[float, float, float]:
    """The least segments' shares of both squared norms, and the share of them that is among the least again."""
    least = [tensor.least(share) for tensor in now]
    again = [tensor.least(share) for tensor in later]

    def held(which: str) -> float:
        parts = [getattr(tensor, which) for tensor in now]
        lost = sum(np.square(part[places]).sum() for part, places in zip(parts, least, strict=True))
        return float(lost / sum(np.square(part).sum() for part in parts))

    both = sum(len(np.intersect1d(*pair)) for pair in zip(least, again, strict=True))
    return held("gradient"), held("update"), both / sum(map(len, least))


if __name__ == "__main__":
    main()
