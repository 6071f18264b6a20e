"""Small trainings in the style of public programs, each written once for every way to distribute it.

A program is a step (gradients, state, x, y) -> state, in whose body all that is distributed goes through `gradients`.
Inside `jax.pmap` and `jax.shard_map` that is a gradient of the rank's batch and a pmean, by lax or by jaxcomm; in a
step that `jax.jit` partitions it is jax's value_and_grad, or jaxcomm's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.training import train_state
from flax.training.dynamic_scale import DynamicScale

AXIS = "data"
FEATURES = 8
CLASSES = 8
PARTS = 2  # microbatches of a step
LAYERS = 3

Loss = Callable[..., Any]


class Gradients(NamedTuple):
    """How a step's work is distributed.

    Attributes:
      value_and_grad: as jax's, of (loss, has_aux); the results are those of the whole batch.
      mean: averages over the ranks; called in the loss or, inside pmap and shard_map, anywhere.
      axis: what layers are to average over: None where they see the whole batch.
      manual: whether the step itself runs on each rank, as inside pmap and shard_map.
    """

    value_and_grad: Callable[..., Callable[..., Any]]
    mean: Callable[[Any], Any]
    axis: str | None
    manual: bool


class Program(NamedTuple):
    """A training.

    Attributes:
      start: the state, given the width of the model.
      step: (gradients, state, x, y) -> state.
      manual: whether it needs `jax.pmap` or `jax.shard_map`.
    """

    start: Callable[[int], Any]
    step: Callable[[Gradients, Any, Any, Any], Any]
    manual: bool = False


def cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy(logits, jax.nn.one_hot(labels, CLASSES))


def dense(key: Any, size: tuple[int, ...]) -> Any:
    return jax.random.normal(key, size) / size[-2] ** 0.5


def perceptron(units: int) -> Any:
    keys = jax.random.split(jax.random.key(0), 2)
    shapes = [(FEATURES, units), (units, CLASSES)]
    return [(dense(key, shape), jnp.zeros(shape[1])) for key, shape in zip(keys, shapes, strict=True)]


def predict(params: Any, x: Any) -> Any:
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def perceptron_loss(params: Any, x: Any, y: Any) -> Any:
    return cross_entropy(predict(params, x), y).mean()


def descend(params: Any, grads: Any) -> Any:
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


# spmd_mnist: a list of layers, plain gradient descent.
def mnist(gradients: Gradients, params: Any, x: Any, y: Any) -> Any:
    _, grads = gradients.value_and_grad(perceptron_loss)(params, x, y)
    return descend(params, grads)


# Flax imagenet: linen, TrainState, BatchNorm, logits as an auxiliary output.
class Normed(nn.Module):
    units: int
    axis: str | None

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.BatchNorm(use_running_average=False, axis_name=self.axis)(nn.Dense(self.units)(x))
        return nn.Dense(CLASSES)(nn.gelu(x))


class ImagenetState(train_state.TrainState):
    batch_stats: Any


def imagenet_start(units: int) -> Any:
    made = Normed(units, None).init(jax.random.key(0), jnp.zeros((1, FEATURES)))
    return ImagenetState.create(apply_fn=None, tx=optax.sgd(0.1, 0.9), **made)


def imagenet(gradients: Gradients, state: Any, x: Any, y: Any) -> Any:
    units = state.params["Dense_0"]["bias"].size

    def loss(params: Any, x: Any, y: Any, batch_stats: Any) -> Any:
        variables = {"params": params, "batch_stats": batch_stats}
        logits, changed = Normed(units, gradients.axis).apply(variables, x, mutable=["batch_stats"])
        return cross_entropy(logits, y).mean(), (changed["batch_stats"], logits)

    specs = (None, AXIS, AXIS, None)
    (_, (stats, logits)), grads = gradients.value_and_grad(loss, True, specs)(state.params, x, y, state.batch_stats)
    assert logits.shape[0] == x.shape[0]
    return state.apply_gradients(grads=grads, batch_stats=stats)


# Flax wmt and lm1b: examples with weights, whose sum divides the loss; dropout.
def language(gradients: Gradients, state: Any, x: Any, y: Any) -> Any:
    params, optimizer, key = state

    def loss(params: Any, x: Any, y: Any) -> Any:
        weights = (y > 0).astype(jnp.float32)
        if gradients.manual:
            own = jax.random.fold_in(key, jax.lax.axis_index(AXIS))
            x = jnp.where(jax.random.bernoulli(own, 0.9, x.shape), x / 0.9, 0)
        return jnp.sum(weights * cross_entropy(predict(params, x), y)) / gradients.mean(weights.sum())

    _, grads = gradients.value_and_grad(loss)(params, x, y)
    updates, optimizer = optax.adamw(1e-2, eps=1e-3).update(grads, optimizer, params)
    return optax.apply_updates(params, updates), optimizer, jax.random.fold_in(key, 1)


def language_start(units: int) -> Any:
    params = perceptron(units)
    return params, optax.adamw(1e-2, eps=1e-3).init(params), jax.random.key(1)


# Optax: microbatches, whose gradients are added up.
def microbatches(gradients: Gradients, params: Any, x: Any, y: Any) -> Any:
    def add(total: Any, part: Any) -> Any:
        _, grads = gradients.value_and_grad(perceptron_loss)(params, *part)
        return jax.tree.map(jnp.add, total, grads), None

    parts = [leaf.reshape(-1, PARTS, *leaf.shape[1:]).swapaxes(0, 1) for leaf in (x, y)]
    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), tuple(parts))
    return descend(params, jax.tree.map(lambda leaf: leaf / PARTS, total))


# Optax: sharpness-aware minimisation, two gradients a step.
_SAM = optax.contrib.sam(
    optax.sgd(0.1), optax.chain(optax.contrib.normalize(), optax.sgd(0.05)), sync_period=2, opaque_mode=True
)


def sam_start(units: int) -> Any:
    params = perceptron(units)
    return params, _SAM.init(params)


def sam(gradients: Gradients, state: Any, x: Any, y: Any) -> Any:
    params, optimizer = state

    def grad_of(params: Any, step: Any = None) -> Any:
        del step
        return gradients.value_and_grad(perceptron_loss)(params, x, y)[1]

    updates, optimizer = _SAM.update(grad_of(params), optimizer, params, grad_fn=grad_of)
    return optax.apply_updates(params, updates), optimizer


# Layers in a scan, recomputed in the backward pass.
def remat_start(units: int) -> Any:
    keys = jax.random.split(jax.random.key(0), 3)
    return dense(keys[0], (FEATURES, units)), dense(keys[1], (LAYERS, units, units)), dense(keys[2], (units, CLASSES))


def remat(gradients: Gradients, params: Any, x: Any, y: Any) -> Any:
    def loss(params: Any, x: Any, y: Any) -> Any:
        first, middle, last = params
        x, _ = jax.lax.scan(jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None)), x @ first, middle)
        return cross_entropy(x @ last, y).mean()

    _, grads = gradients.value_and_grad(loss)(params, x, y)
    return descend(params, grads)


# Flax nnx: a module that is split into its parameters and the rest.
class Net(nnx.Module):
    def __init__(self, units: int, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(FEATURES, units, rngs=rngs)
        self.norm = nnx.LayerNorm(units, rngs=rngs)
        self.second = nnx.Linear(units, CLASSES, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.second(nnx.gelu(self.norm(self.first(x))))


def nnx_start(units: int) -> Any:
    net = Net(units, nnx.Rngs(0))
    return nnx.state((net, nnx.Optimizer(net, optax.adam(1e-2, eps=1e-3), wrt=nnx.Param)))


def nnx_(gradients: Gradients, state: Any, x: Any, y: Any) -> Any:
    units = state[0]["first"]["bias"].get_value().size
    net = nnx.eval_shape(lambda: Net(units, nnx.Rngs(0)))
    graph = nnx.graphdef((net, nnx.Optimizer(net, optax.adam(1e-2, eps=1e-3), wrt=nnx.Param)))
    net, optimizer = nnx.merge(graph, state)
    net_graph, params = nnx.split(net)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return cross_entropy(nnx.merge(net_graph, params)(x), y).mean()

    _, grads = gradients.value_and_grad(loss)(params, x, y)
    optimizer.update(net, grads)
    return nnx.state((net, optimizer))


# Equinox: a module whose arrays are separated from the rest, its activation for one.
def equinox_start(units: int) -> Any:
    import equinox as eqx

    return eqx.partition(eqx.nn.MLP(FEATURES, CLASSES, units, 1, key=jax.random.key(0)), eqx.is_inexact_array)[0]


def equinox(gradients: Gradients, params: Any, x: Any, y: Any) -> Any:
    import equinox as eqx

    units = params.layers[0].bias.size
    model = eqx.filter_eval_shape(partial(eqx.nn.MLP, FEATURES, CLASSES, units, 1), key=jax.random.key(0))
    _, static = eqx.partition(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def loss(params: Any, static: Any, x: Any, y: Any) -> Any:
        return cross_entropy(jax.vmap(eqx.combine(params, static))(x), y).mean()

    _, grads = gradients.value_and_grad(loss)(params, static, x, y)
    return eqx.apply_updates(params, jax.tree.map(lambda g: -0.1 * g, grads))


# Brax: observations normalised by running statistics, then several updates of minibatches.
def brax_start(units: int) -> Any:
    return perceptron(units), jnp.zeros(FEATURES), jnp.float32(0)


def brax(gradients: Gradients, state: Any, x: Any, y: Any) -> Any:
    params, mean, count = state
    count = count + 1
    mean = mean + (gradients.mean(x.mean(0)) - mean) / count

    def update(params: Any, part: Any) -> Any:
        value, grads = gradients.value_and_grad(perceptron_loss)(params, *part)
        return descend(params, grads), value

    parts = [leaf.reshape(PARTS, -1, *leaf.shape[1:]) for leaf in (x - mean, y)]
    params, _ = jax.lax.scan(update, params, tuple(parts))
    return params, mean, count


# Flax's DynamicScale, which averages by lax itself: `replace_lax` gives that to jaxcomm.
def scaled_start(units: int) -> Any:
    return perceptron(units), DynamicScale(growth_interval=2)


def scaled(gradients: Gradients, state: Any, x: Any, y: Any) -> Any:
    params, scale = state
    found = scale.value_and_grad(perceptron_loss, axis_name=gradients.axis)(params, x, y)
    scale, finite, _, grads = found
    return jax.tree.map(partial(jnp.where, finite), descend(params, grads), params), scale


PROGRAMS = {
    "mnist": Program(perceptron, mnist),
    "imagenet": Program(imagenet_start, imagenet),
    "language": Program(language_start, language),
    "microbatches": Program(perceptron, microbatches),
    "sam": Program(sam_start, sam),
    "remat": Program(remat_start, remat),
    "nnx": Program(nnx_start, nnx_),
    "equinox": Program(equinox_start, equinox),
    "brax": Program(brax_start, brax, manual=True),
    "dynamic scale": Program(scaled_start, scaled, manual=True),
}
