"""The task, independent of its synchronisation: data, model, loss, metric and optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import optax

Tree = Any


@dataclass(frozen=True)
class Task:
    """A training without its synchronisation. The functions are traced, inside `jax.shard_map`.

    Variables are a dict: "params", which the optimizer changes, and "state", which the loss returns anew (BatchNorm's
    statistics; an empty dict where there are none).

    Attributes:
      train: tree of arrays; their first dimension is divided among the workers.
      test: the same; what each worker scores.
      init: variables from a key.
      sample: a worker's batch from its part of `train` and a key.
      loss: (params, state, batch) → (mean loss, state).
      score: (params, state, a worker's part of `test`) → (sum of the metric, number of examples).
      optimizer: what follows the synchronisation of gradients.
      metric: name of what `score` measures.
    """

    train: Tree
    test: Tree
    init: Callable[[jax.Array], dict[str, Tree]]
    sample: Callable[[Tree, jax.Array], Tree]
    loss: Callable[[Tree, Tree, Tree], tuple[jax.Array, Tree]]
    score: Callable[[Tree, Tree, Tree], tuple[jax.Array, jax.Array]]
    optimizer: optax.GradientTransformation
    metric: str
