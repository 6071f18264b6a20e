"""Parameters averaged over all ranks after several local steps: plainly, or as the step of an outer optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxcomm.collectives import axes
from jaxcomm.collectives.api import psum
from jaxcomm.collectives.axes import AxisName, as_varying
from jaxcomm.collectives.leaves import leaf_name
from jaxcomm.errors import load_extra
from jaxcomm.train.divide_and_shuffle import ParameterAverage, mean_of

if TYPE_CHECKING:
    import optax

_Tree = TypeVar("_Tree")


def local_sgd(every: int, axis_name: AxisName) -> ParameterAverage:
    """Averages the parameters over all ranks after every `every` steps, and not in between.

    Types are kept; a mean of integers is rounded down.

    Source: Stich, "Local SGD Converges Fast and Communicates Little".

    Example:
      >>> average = jaxcomm.train.local_sgd(2, "data")
      >>> run = jax.jit(jax.shard_map(average, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data")))
      >>> run(jnp.arange(8.0), 0).tolist(), run(jnp.arange(8.0), 1)[0].item()
      ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 3.5)
    """
    _check("local_sgd", every)

    def whole(params: Any) -> Any:
        return jax.tree.map(as_varying, _mean(params, axis_name), params)

    def average(params: _Tree, step: jax.Array | int) -> _Tree:
        result: _Tree = lax.cond(jnp.asarray(step) % every == every - 1, whole, lambda params: params, params)
        return result

    return average


class OuterState(NamedTuple):
    """The parameters that all ranks agreed on last, and the outer optimizer's state. All ranks have the same state."""

    agreed: Any
    optimizer: optax.OptState


class OuterUpdate(Protocol):
    """Returns the next parameters and the new state."""

    def __call__(self, params: _Tree, state: OuterState, step: jax.Array | int, /) -> tuple[_Tree, OuterState]: ...


class OuterSteps(NamedTuple):
    """`init(params)` returns the state. `update(params, state, step)` returns the next parameters and the new state."""

    init: Callable[[Any], OuterState]
    update: OuterUpdate


def outer_steps(every: int, optimizer: optax.GradientTransformation, axis_name: AxisName) -> OuterSteps:
    """After every `every` local steps, moves the parameters that the ranks last agreed on towards the ranks' mean.

    The outer optimizer's gradient is the ranks' mean movement since the last outer step, negated. All ranks continue
    from the optimizer's result. Between two outer steps nothing is sent. With `optax.sgd(1.0)` this is `local_sgd`. The
    source uses `optax.sgd(0.7, momentum=0.9, nesterov=True)`.

    Args:
      every: number of local steps for each outer step.
      optimizer: the outer optimizer.
      axis_name: axis of the mesh, or several axes.

    Returns:
      The two functions, for use inside `jax.shard_map`. All ranks must pass the same parameters to `init`. Each rank
      keeps its own state of the local optimizer.

    Raises:
      ValueError: `every` is below 1, or not an integer.
      TypeError: `init` gets parameters that are not floating-point numbers.

    Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", algorithm 1.

    Example:
      >>> outer = jaxcomm.train.outer_steps(100, optax.sgd(0.7, momentum=0.9, nesterov=True), "data")
      >>> outer.init({"kernel": jnp.zeros(2)}).agreed  # then `outer.update(params, state, step)` after each step
      {'kernel': Array([0., 0.], dtype=float32)}
    """
    _check("outer_steps", every)
    apply_updates = load_extra("optax", "jaxcomm.train.outer_steps").apply_updates

    def init(params: Any) -> OuterState:
        _check_floats(params)
        return OuterState(jax.tree.map(jnp.copy, params), optimizer.init(params))  # copied: callers may donate params

    def outer(params: Any, state: OuterState) -> tuple[Any, OuterState]:
        moved = jax.tree.map(jnp.subtract, state.agreed, _mean(params, axis_name))
        updates, inner = optimizer.update(moved, state.optimizer, state.agreed)
        agreed = apply_updates(state.agreed, updates)
        return jax.tree.map(as_varying, agreed, params), OuterState(agreed, inner)

    def update(params: _Tree, state: OuterState, step: jax.Array | int) -> tuple[_Tree, OuterState]:
        result: tuple[_Tree, OuterState] = lax.cond(
            jnp.asarray(step) % every == every - 1, outer, lambda params, state: (params, state), params, state
        )
        return result

    return OuterSteps(init, update)


def _mean(params: Any, axis_name: AxisName) -> Any:
    total = psum(params, axis_name)
    return jax.tree.map(partial(mean_of, ranks=lax.axis_size(axes.names(axis_name))), total)


def _check(where: str, every: int) -> None:
    if not isinstance(every, int) or every < 1:
        raise ValueError(f"{where}: every is {every!r}; it must be a whole number of steps, at least 1")


def _check_floats(params: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            name = leaf_name(path)
            raise TypeError(
                f"outer_steps: {name!r} is {leaf.dtype}; an outer optimizer moves floating-point parameters.\n"
                "  Cure: keep counters and keys out of the parameters that it gets."
            )
