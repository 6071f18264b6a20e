"""Parameters averaged over all ranks after several local steps: plainly, or as the step of an outer optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from jaxcomm.collectives.api import AxisName, pmean
from jaxcomm.train.divide_and_shuffle import Average


def local_sgd(every: int, axis_name: AxisName) -> Average:
    """Averages over all ranks after every so many steps (the last of them), and not in between.

    Source: Stich, "Local SGD Converges Fast and Communicates Little".
    """
    _check(every)
    whole = partial(pmean, axis_name=axis_name)
    return lambda params, step: lax.cond(jnp.asarray(step) % every == every - 1, whole, lambda params: params, params)


class OuterState(NamedTuple):
    """The parameters that all ranks agreed on last, and the outer optimizer's state; the same on all ranks."""

    agreed: Any
    optimizer: optax.OptState


class OuterSteps(NamedTuple):
    """`init(params)` gives the state; `update(params, state, step)` what a rank goes on with, and the new state."""

    init: Callable[[Any], OuterState]
    update: Callable[[Any, OuterState, jax.Array | int], tuple[Any, OuterState]]


def outer_steps(every: int, optimizer: optax.GradientTransformation, axis_name: AxisName) -> OuterSteps:
    """After every so many local steps, moves the parameters that the ranks last agreed on towards the ranks' mean.

    What the ranks moved on average since then, with its sign turned, is the gradient that the outer optimizer gets; all
    ranks go on from the result. In between nothing is sent. `optax.sgd(1.0)` makes it `local_sgd`; the source takes
    `optax.sgd(0.7, momentum=0.9, nesterov=True)`.

    Args:
      every: local steps between two outer ones.
      optimizer: the outer optimizer.
      axis_name: axis of the mesh, or several.

    Returns:
      The two functions, for use inside `jax.shard_map`. All ranks must pass the same parameters to `init`; the local
      optimizer's state is none of its business and stays each rank's own.

    Raises:
      ValueError: `every` is below 1.

    Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", algorithm 1.
    """
    _check(every)

    def init(params: Any) -> OuterState:
        return OuterState(params, optimizer.init(params))

    def outer(params: Any, state: OuterState) -> tuple[Any, OuterState]:
        moved = jax.tree.map(jnp.subtract, state.agreed, pmean(params, axis_name))
        updates, inner = optimizer.update(moved, state.optimizer, state.agreed)
        agreed = optax.apply_updates(state.agreed, updates)
        return agreed, OuterState(agreed, inner)

    def update(params: Any, state: OuterState, step: jax.Array | int) -> tuple[Any, OuterState]:
        result: tuple[Any, OuterState] = lax.cond(
            jnp.asarray(step) % every == every - 1, outer, lambda params, state: (params, state), params, state
        )
        return result

    return OuterSteps(init, update)


def _check(every: int) -> None:
    if every < 1:
        raise ValueError(f"every is {every}; it must be at least 1 step")
