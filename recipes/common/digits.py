"""Handwritten digits by a plain perceptron (Flax linen), for recipes that are about something else."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from common import data
from common.task import Task

BATCH = 8  # images per worker and step


class Perceptron(nn.Module):
    """Two hidden layers, smooth: at a ReLU's kink, sums unlike in the last bit would send two trainings separate ways.

    Attributes:
      units: of each of them.
    """

    units: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits [batch, 10] of uint8 images [batch, height, width, channels]."""
        x = images.reshape(len(images), -1).astype(jnp.float32) / 255
        for _ in range(2):
            x = nn.gelu(nn.Dense(self.units)(x))
        return nn.Dense(10)(x)


def digits(units: int) -> Task:
    """scikit-learn's digits; no layer sums over the workers."""
    train, test = data.digits()
    network = Perceptron(units)

    def init(key: jax.Array) -> dict[str, Any]:
        return {"params": network.init(key, train.images[:1]), "state": {}}

    def sample(part: data.Images, key: jax.Array) -> data.Images:
        chosen = jax.random.choice(key, len(part.labels), (BATCH,), replace=False)
        return jax.tree.map(lambda leaf: leaf[chosen], part)

    def loss(params: Any, state: Any, batch: data.Images) -> tuple[jax.Array, Any]:
        logits = network.apply(params, batch.images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels).mean(), state

    def score(params: Any, state: Any, part: data.Images) -> tuple[jax.Array, jax.Array]:
        right = network.apply(params, part.images).argmax(-1) == part.labels
        return right.sum().astype(jnp.float32), jnp.float32(len(part.labels))

    return Task(train, test, init, sample, loss, score, optax.sgd(0.05, momentum=0.9), "accuracy")
