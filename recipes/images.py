"""Image classification with BatchNorm (Flax linen): a perceptron on digits, a convolutional network on CIFAR-10.

    python recipes/images.py
    python recipes/images.py --sync ds-sync
    python recipes/images.py --cifar10 cifar-10-batches-bin --steps 5000 --every 100

Digits ship with scikit-learn: 1347 to train on, 450 to test on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common import devices

devices.prepare()

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from absl import flags

import jaxcomm
from common import data, recipe, tolerance
from common.task import Task
from jaxcomm.profile import Layer

CIFAR10 = flags.DEFINE_string("cifar10", None, "folder of CIFAR-10, Python or binary version; without it: digits")
BATCH = 16  # images per worker and step
CLASSES = 10
STEPS_PER_ROUND = 5  # of `train`


class Network(nn.Module):
    """Convolutions of stride 2, then dense layers, each with BatchNorm; then one to the classes.

    Attributes:
      convolutions: channels of each.
      hidden: units of each dense layer.
      axis: mesh axis over which BatchNorm takes its statistics; None: each worker takes its own.
    """

    convolutions: Sequence[int]
    hidden: Sequence[int]
    axis: str | None

    @nn.compact
    def __call__(self, images: jax.Array, training: bool) -> jax.Array:
        """Logits [batch, 10] of uint8 images [batch, height, width, channels]."""
        x = images.astype(jnp.float32) / 255
        for width in self.convolutions:
            x = self._activate(nn.Conv(width, (3, 3), strides=2, use_bias=False)(x), training)
        x = x.reshape(len(x), -1)
        for width in self.hidden:
            x = self._activate(nn.Dense(width, use_bias=False)(x), training)
        return nn.Dense(CLASSES)(x)

    def _activate(self, x: jax.Array, training: bool) -> jax.Array:
        return nn.relu(nn.BatchNorm(use_running_average=not training, momentum=0.9, axis_name=self.axis)(x))


def digits(axis: str | None, rate: float = 0.05) -> Task:
    """scikit-learn's digits; two hidden layers, 86 thousand parameters."""
    return _task(Network((), (256, 256), axis), data.digits(), optax.sgd(rate, momentum=0.9))


def cifar10(axis: str | None, folder: Path) -> Task:
    """CIFAR-10; four convolutions, 0.4 million parameters."""
    return _task(Network((32, 64, 128, 256), (), axis), data.cifar10(folder), optax.sgd(0.05, momentum=0.9))


def train(drop: jaxcomm.train.Drop | None, seed: int) -> Iterator[float]:
    """Accuracy on the digits' test images, round by round without end; `drop` says what the gradients leave out.

    For `jaxcomm profile drop-bound recipes/images.py:train`.
    """
    return tolerance.rounds(digits, drop, seed, steps=STEPS_PER_ROUND)


def layers() -> list[Layer]:
    """The digits' network, for `--layers recipes/images.py:layers`."""
    return tolerance.layers(digits)


def _task(network: Network, images: tuple[data.Images, data.Images], optimizer: optax.GradientTransformation) -> Task:
    def init(key: jax.Array) -> dict[str, Any]:
        made = network.init(key, images[0].images[:1], False)
        return {"params": made["params"], "state": made["batch_stats"]}

    def sample(part: data.Images, key: jax.Array) -> data.Images:
        chosen = jax.random.choice(key, len(part.labels), (BATCH,), replace=False)
        return jax.tree.map(lambda leaf: leaf[chosen], part)

    def loss(params: Any, state: Any, batch: data.Images) -> tuple[jax.Array, Any]:
        variables = {"params": params, "batch_stats": state}
        logits, changed = network.apply(variables, batch.images, True, mutable=["batch_stats"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
        return losses.mean(), changed["batch_stats"]

    def score(params: Any, state: Any, part: data.Images) -> tuple[jax.Array, jax.Array]:
        logits = network.apply({"params": params, "batch_stats": state}, part.images, False)
        return (logits.argmax(-1) == part.labels).sum().astype(jnp.float32), jnp.float32(len(part.labels))

    return Task(*images, init, sample, loss, score, optimizer, "accuracy")


def main() -> None:
    """Runs the recipe on the data that the flags name."""
    if CIFAR10.value:
        recipe.run("cifar10", lambda axis: cifar10(axis, Path(CIFAR10.value)))
    else:
        recipe.run("digits", digits)


if __name__ == "__main__":
    recipe.main(main)
