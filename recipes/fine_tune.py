"""Fine-tuning of a pre-trained front (Flax linen): layers that distinguish digits learn their remainders by 5.

    python recipes/fine_tune.py
    python recipes/fine_tune.py --front frozen
    python recipes/fine_tune.py --sync mlt --bound 0.95 --lose front --every 10
    python recipes/fine_tune.py --sync mlt --bound 0.95 --lose back --every 10

MLT lets a network lose the gradients of front layers first: once they are pre-trained, they matter least. Front and
back have about as many parameters here, so that the last two commands leave out about as many bytes. With `--knows
half` the front has not seen half of the digits, and has to learn them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common import devices

devices.prepare()

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags

from common import data, recipe, synchronisation
from common.task import Task
from common.training import Training
from jaxcomm.train import Drop

KNOWS = flags.DEFINE_enum("knows", "all", ("all", "half"), "digits that the front is pre-trained on: all, or 0 to 4")
FRONT = flags.DEFINE_enum("front", "trained", ("trained", "frozen"), "whether the pre-trained layers learn on")
LOSE = flags.DEFINE_enum(
    "lose", "front", ("front", "back"), "mlt: whose gradients --bound is for; the others' are whole"
)

BATCH = 8  # images per worker and step
FRONT_UNITS, BACK_UNITS = 192, 256  # 49,536 parameters in front, 50,693 at the back
DIGITS, REMAINDERS = 10, 5
PRE_TRAINING = 300  # steps


class Front(nn.Module):
    """The pre-trained part: two layers."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Features [batch, 192] of uint8 images [batch, height, width, channels]."""
        x = images.reshape(len(images), -1).astype(jnp.float32) / 255
        for _ in range(2):
            x = nn.gelu(nn.Dense(FRONT_UNITS)(x))
        return x


class Back(nn.Module):
    """The new part: a layer, and the one to the classes."""

    classes: int

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        """Logits [batch, classes] of features [batch, 192]."""
        return nn.Dense(self.classes)(nn.gelu(nn.Dense(BACK_UNITS)(features)))


def pre_training(known: int) -> Task:
    """Distinguishes digits, those below `known`."""
    return _task([_below(part, known) for part in data.digits()], Back(DIGITS), None, frozen=False)


def fine_tuning(front: Any, *, frozen: bool) -> Task:
    """Distinguishes the remainders of all digits by 5, by a new back.

    Args:
      front: its pre-trained parameters.
      frozen: the front is no parameter but state, so that no gradient of it is made or sent.
    """
    parts = [data.Images(part.images, part.labels % REMAINDERS) for part in data.digits()]
    return _task(parts, Back(REMAINDERS), front, frozen=frozen)


def pre_trained(known: int) -> Any:
    """The front's parameters after its pre-training: seconds on CPUs, the same bits each time."""
    mesh = devices.mesh()
    training = Training(pre_training(known), synchronisation.by_name("jaxcomm", mesh.size), mesh)
    state, _ = training.steps(training.init(0), PRE_TRAINING)
    accuracy = training.score(state)["accuracy"]
    devices.say(f"the front distinguishes 0 to {known - 1}, accuracy {accuracy:.4f}")
    return jax.tree.map(np.asarray, state.worker.variables["params"]["front"])


def allowed(bound: float) -> Drop:
    """The drop: at most `bound` of each kernel of the front, or of the back."""
    return Drop(0.0, bounds={f"{LOSE.value}/params/Dense_{i}/kernel": bound for i in range(2)})


def _below(part: data.Images, known: int) -> data.Images:
    chosen = part.labels < known
    return data.Images(part.images[chosen], part.labels[chosen])


def _task(parts: Sequence[data.Images], back: Back, front: Any, *, frozen: bool) -> Task:
    train, test = parts

    def init(key: jax.Array) -> dict[str, Any]:
        keys = jax.random.split(key)
        made = Front().init(keys[0], train.images[:1]) if front is None else front
        new = {"back": back.init(keys[1], jnp.zeros((1, FRONT_UNITS)))}
        return {"params": new, "state": made} if frozen else {"params": {"front": made} | new, "state": {}}

    def sample(part: data.Images, key: jax.Array) -> data.Images:
        chosen = jax.random.choice(key, len(part.labels), (BATCH,), replace=False)
        return jax.tree.map(lambda leaf: leaf[chosen], part)

    def logits(params: Any, state: Any, images: jax.Array) -> jax.Array:
        return back.apply(params["back"], Front().apply(state if frozen else params["front"], images))

    def loss(params: Any, state: Any, batch: data.Images) -> tuple[jax.Array, Any]:
        found = logits(params, state, batch.images)
        return optax.softmax_cross_entropy_with_integer_labels(found, batch.labels).mean(), state

    def score(params: Any, state: Any, part: data.Images) -> tuple[jax.Array, jax.Array]:
        right = logits(params, state, part.images).argmax(-1) == part.labels
        return right.sum().astype(jnp.float32), jnp.float32(len(part.labels))

    return Task(train, test, init, sample, loss, score, optax.sgd(0.05, momentum=0.9), "accuracy")


def main() -> None:
    """Pre-trains, then runs the recipe."""
    front = pre_trained(DIGITS if KNOWS.value == "all" else DIGITS // 2)
    frozen = FRONT.value == "frozen"
    recipe.run("fine_tune", lambda axis: fine_tuning(front, frozen=frozen), drop=allowed, own=(KNOWS, FRONT, LOSE))


if __name__ == "__main__":
    recipe.main(main)
