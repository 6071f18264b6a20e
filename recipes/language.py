"""A language model: a small transformer (Flax nnx) that predicts the next character of Python's own help texts.

    python recipes/language.py
    python recipes/language.py --sync mlt --bound 0.2

The text ships with Python (`pydoc_data.topics`); a tenth of it is held out. `nats` is the mean loss per held-out
character: ln 103 = 4.6 for a guess (of the characters that Python 3.11 has), less is
better.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from common import devices

devices.prepare()

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import jaxcomm
from common import data, recipe, tolerance
from common.task import Task
from jaxcomm.profile import Layer

BATCH = 4  # windows per worker and step
WINDOW = 64  # characters
TESTED = 256  # windows of the held-out text that are scored
WIDTH, LAYERS, HEADS = 64, 2, 4
STEPS_PER_ROUND = 10  # of `train`


class Block(nnx.Module):
    """Attention to the characters before, then two dense layers, each added to what comes in."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.before_attention, self.before_dense = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, use_bias=False, rngs=rngs)
        self.widen = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.narrow = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """[batch, window, width] → the same."""
        x = x + self.attention(self.before_attention(x), mask=mask)
        return x + self.narrow(nnx.gelu(self.widen(self.before_dense(x))))


class Transformer(nnx.Module):
    """Characters and their places, blocks, and a dense layer to the next character."""

    def __init__(self, characters: int, rngs: nnx.Rngs) -> None:
        self.characters = nnx.Embed(characters, WIDTH, rngs=rngs)
        self.places = nnx.Embed(WINDOW, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.last = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, characters, rngs=rngs)

    def __call__(self, text: jax.Array) -> jax.Array:
        """Logits [batch, window, characters] of text [batch, window]."""
        x = self.characters(text) + self.places(jnp.arange(WINDOW))
        mask = nnx.make_causal_mask(text)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.last(x))


def python_help(axis: str | None = None, rate: float = 3e-3) -> Task:
    """The text of Python's help; 0.12 million parameters, no layer of which sums over `axis`."""
    del axis
    text = data.python_help()

    def make(rngs: nnx.Rngs) -> Transformer:
        return Transformer(len(text.alphabet), rngs)

    structure, _ = nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0))))

    def init(key: jax.Array) -> dict[str, Any]:
        return {"params": nnx.state(make(nnx.Rngs(key))), "state": {}}

    def sample(part: jax.Array, key: jax.Array) -> jax.Array:
        starts = jax.random.randint(key, (BATCH, 1), 0, len(part) - WINDOW)
        return part[starts + jnp.arange(WINDOW + 1)]

    def losses(params: Any, windows: jax.Array) -> jax.Array:
        text = windows.astype(jnp.int32)
        logits = nnx.merge(structure, params)(text[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:])

    def loss(params: Any, state: Any, batch: jax.Array) -> tuple[jax.Array, Any]:
        return losses(params, batch).mean(), state

    def score(params: Any, state: Any, windows: jax.Array) -> tuple[jax.Array, jax.Array]:
        del state
        each = losses(params, windows)
        return each.sum(), jnp.float32(each.size)

    held_out = text.test[: TESTED * (WINDOW + 1)].reshape(TESTED, WINDOW + 1)
    return Task(text.train, held_out, init, sample, loss, score, optax.adam(rate), "nats")


def train(drop: jaxcomm.train.Drop | None, seed: int) -> Iterator[float]:
    """Nats per held-out character, round by round without end; `drop` says what the gradients leave out.

    For `jaxcomm profile drop-bound recipes/language.py:train`.
    """
    return tolerance.rounds(python_help, drop, seed, steps=STEPS_PER_ROUND)


def layers() -> list[Layer]:
    """The transformer, for `--layers recipes/language.py:layers`."""
    return tolerance.layers(python_help)


if __name__ == "__main__":
    recipe.main(lambda: recipe.run("language", python_help))
