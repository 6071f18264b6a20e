"""A Flax classifier for scikit-learn's handwritten digits, trained data-parallel, one step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

from jaxcomm.cli.common import spmd
from jaxcomm.cli.common.spmd import SAME, SPLIT

_PIXELS, _CLASSES = 64, 10


class Perceptron(nn.Module):
    """A network with two hidden layers. With 2048 units each, its gradient has 4.35 million numbers, 16.6 MiB."""

    hidden: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Logits [batch, 10] of images [batch, 64]."""
        # GELU is smooth. At a ReLU's kink, a difference in the last bit would make two training runs diverge.
        for _ in range(2):
            images = nn.gelu(nn.Dense(self.hidden)(images))
        logits: jax.Array = nn.Dense(_CLASSES)(images)
        return logits


def gradient_bytes(hidden: int) -> int:
    """Bytes of the gradient, which has the same size as the parameters."""
    image = jax.ShapeDtypeStruct((1, _PIXELS), jnp.float32)
    params = jax.eval_shape(Perceptron(hidden).init, jax.random.key(0), image)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))


class Training:
    """One training run: its parameters, its position in the data, and the loss and seconds of each step so far.

    Runs that differ only in `pmean` start from the same parameters and see the same images in the same order.
    """

    def __init__(
        self,
        pmean: Callable[[Any, str], Any],
        delay: Callable[[Any], Any],
        *,
        devices: int,
        hidden: int,
        batch: int,
        seed: int,
    ) -> None:
        """Compiles the step.

        Args:
          pmean: `jax.lax.pmean` or an equivalent.
          delay: returns a device's gradient and loss unchanged, but delays the late ranks.
          devices: number of data-parallel devices.
          hidden: units of each hidden layer.
          batch: number of images per device and step.
          seed: seed of the parameters and of the order of the images.
        """
        images, labels = load_digits(return_X_y=True)
        self._images, self._labels = (images / 16).astype(np.float32), labels.astype(np.int32)
        self._order = np.random.default_rng(seed)
        self._count = devices * batch
        self._mesh = spmd.mesh(devices)
        model = Perceptron(hidden)
        optimizer = optax.sgd(0.1)

        def step(params: Any, state: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, Any, jax.Array]:
            def loss_of(params: Any) -> jax.Array:
                losses = optax.softmax_cross_entropy_with_integer_labels(model.apply(params, images), labels)
                return jnp.mean(losses)

            loss, grads = jax.value_and_grad(loss_of)(params)
            grads, loss = pmean(delay((grads, loss)), spmd.AXIS)
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state, loss

        mapped = jax.shard_map(
            step, mesh=self._mesh, in_specs=(SAME, SAME, SPLIT, SPLIT), out_specs=(SAME, SAME, SAME), check_vma=False
        )
        self._step = jax.jit(mapped, donate_argnums=(0, 1))
        params = model.init(jax.random.key(seed), self._images[:1])
        self.params, self._state = spmd.place((params, optimizer.init(params)), self._mesh, SAME)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self) -> None:
        """Takes one step on the next images and waits for the step's end; appends to `losses` and `seconds`."""
        chosen = self._order.choice(len(self._labels), self._count, replace=False)
        batch = spmd.wait(spmd.place((self._images[chosen], self._labels[chosen]), self._mesh, SPLIT))
        start = time.perf_counter()
        self.params, self._state, loss = self._step(self.params, self._state, *batch)
        spmd.wait((self.params, loss))
        self.seconds.append(time.perf_counter() - start)
        self.losses.append(float(loss))
