"""An Optax transformation that averages gradients over the ranks, but leaves out their least important parts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxcomm.collectives import axes
from jaxcomm.collectives.active_plan import PlanLike
from jaxcomm.collectives.api import psum
from jaxcomm.collectives.axes import AxisName
from jaxcomm.collectives.drops.bounded_sums import bounded_sum
from jaxcomm.collectives.drops.drop import Drop, check_drop
from jaxcomm.errors import load_extra

if TYPE_CHECKING:
    import optax


class BoundedDropState(NamedTuple):
    """The part that this rank left out of the last step; None without error feedback."""

    left_out: Any


def bounded_drop(
    axis_name: AxisName, drop: Drop | None = None, *, plan: PlanLike = None, error_feedback: bool | None = None
) -> optax.GradientTransformation:
    """Averages gradients over the ranks of `axis_name`, but leaves out at most the parts that `drop` allows.

    Replaces `jaxcomm.pmean` on the gradients: chain it before the optimizer, inside `jax.shard_map`.

    Args:
      axis_name: axis of the mesh, or several axes.
      drop: the part that may be left out. None is `Drop()`: a tenth of each tensor, with the policy "agreed".
      plan: as for `jaxcomm.psum`.
      error_feedback: whether a rank adds the part that it left out of a step to its gradient in the next step. The
        part is kept in the parameters' types. The state then differs between ranks, so `left_out` is sharded over
        `axis_name`. None means only with the policy "deadline".

    Raises:
      ValueError: error feedback with the policy "network". This policy averages over the ranks whose packets arrived,
        so lost parts are not missing from the mean, and feedback would count them twice.
      NameError, PlanError, JaxcommError: as for `jaxcomm.psum`.

    Source: Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", sections 3 and 4.2.

    Example:
      >>> optimizer = optax.chain(jaxcomm.train.bounded_drop("data"), optax.sgd(0.1))
      >>> optimizer.init({"kernel": jnp.zeros(4)})[0]
      BoundedDropState(left_out=None)
    """
    transformations = load_extra("optax", "jaxcomm.train.bounded_drop")
    allowed = Drop() if drop is None else drop
    check_drop("train.bounded_drop", allowed)
    feeds_back = allowed.policy == "deadline" if error_feedback is None else error_feedback
    if feeds_back and allowed.policy == "network":
        raise ValueError(
            'bounded_drop: error_feedback is for the policies "agreed" and "deadline"; "network" averages over the '
            "ranks whose packets arrived, so nothing is missing that could be fed back.\n"
            '  Cure: remove error_feedback, or use the policy "deadline".'
        )

    def init(params: optax.Params) -> BoundedDropState:
        def nothing(leaf: jax.Array) -> jax.Array:
            return axes.varying(jnp.zeros_like(leaf), axes.names(axis_name))

        return BoundedDropState(jax.tree.map(nothing, params) if feeds_back else None)

    def update(
        updates: optax.Updates, state: BoundedDropState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, BoundedDropState]:
        del params
        axes.check("train.bounded_drop", axis_name)
        ranks = lax.axis_size(axes.names(axis_name))
        if feeds_back:
            updates = jax.tree.map(lambda leaf, more: leaf + more.astype(leaf.dtype), updates, state.left_out)
        total = partial(psum, axis_name=axis_name, plan=plan)
        sums, left_out = bounded_sum(updates, allowed, total, axis_name, feeds_back=feeds_back)
        means = jax.tree.map(lambda leaf: leaf / ranks, sums)
        if not feeds_back:
            return means, BoundedDropState(None)
        fed_back = jax.tree.map(lambda leaf, before: leaf.astype(before.dtype), left_out, state.left_out)
        return means, BoundedDropState(fed_back)

    made: optax.GradientTransformation = transformations.GradientTransformation(init, update)
    return made
