"""Parameters averaged over a few ranks at a time, in groups that change from step to step (DS-Sync)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from jaxcomm.collectives import axes
from jaxcomm.collectives.api import pmean
from jaxcomm.collectives.axes import AxisName
from jaxcomm.collectives.grouped import group_sum
from jaxcomm.errors import PlanError
from jaxcomm.plan import Plan, load
from jaxcomm.plan.groups import Groups

Average = Callable[[Any, jax.Array | int], Any]
Iterations = Sequence[Sequence[Sequence[int]]]

ROWS: Final = 32  # of a table at least: the longest period that a plan made here has


class Shuffled(Protocol):
    """Averages the parameters of a step; `table`, if given, says with whom in place of the plan."""

    def __call__(self, params: Any, step: jax.Array | int, table: jax.Array | None = None) -> Any: ...


def divide_and_shuffle(plan: str | os.PathLike[str] | Plan | Iterations, axis_name: AxisName) -> Shuffled:
    """Averages over the groups of iteration `step mod period`, within one compiled step for all iterations.

    The result takes (parameters, step, table); it keeps types, and rounds a mean of integers down. Without a table the
    plan's pattern is part of the program. With one, from `group_table` or `adjust_groups`, it is data: other values of
    it need no compilation. The ranks of a group get the same bits. Use it after the local update, inside
    `jax.shard_map` over per-rank parameters:

        average = train.divide_and_shuffle("plan.json", "data")
        params = average(optax.apply_updates(params, updates), step, table)

    At the end, or for evaluation, `jaxcomm.pmean` averages over all ranks. Each rank's running average of its weights
    (the source's SWA) is Optax's, and its mean over the ranks is what is kept at the end:

        swa = optax.incremental_update(params, swa, step_size=0.01)  # after the average, in every step
        final = jaxcomm.pmean(swa, "data")  # once

    BatchNorm's running statistics belong to the weights they were measured with: average them in the same way for a
    first guess, then measure them again with some batches for the averaged weights.

    Args:
      plan: path of a plan file, or a `jaxcomm.plan.Plan`, whose groups are taken; or the groups of each iteration of
        one period themselves, which hold every rank once.
      axis_name: axis of the mesh, or several, the first of which counts slowest.

    Raises:
      PlanError: the plan cannot be read, or decides no groups.
      ValueError: no iteration, groups that do not hold each rank once, or, where it is traced, an axis or a table of
        other ranks, or a step that is no integer.
      NameError, TypeError: where it is traced, no such axis, or an element type that the core does not do.

    Source: Wang et al., "DS-Sync: Addressing Network Bottlenecks with Divide-and-Shuffle Synchronization", section III.
    """
    own, names = group_table(plan), axes.names(axis_name)

    def average(params: Any, step: jax.Array | int, table: jax.Array | None = None) -> Any:
        axes.check("train.divide_and_shuffle", axis_name)
        table = jnp.asarray(own if table is None else table)
        if own.shape[1] != (ranks := lax.axis_size(names)):
            raise ValueError(
                f"divide_and_shuffle: the groups are of {own.shape[1]} ranks, but axis {axis_name!r} has {ranks}.\n"
                f"  Cure: plan from a profile of {ranks} ranks, or average over an axis of {own.shape[1]}."
            )
        if table.ndim != 2 or table.shape[1] != ranks or table.dtype != jnp.int32:
            raise ValueError(
                f"divide_and_shuffle: the table is {table.dtype}{list(table.shape)}; it must be int32[rows, {ranks}].\n"
                "  Cure: pass what group_table or adjust_groups returned, replicated over the mesh."
            )
        step = jnp.asarray(step)
        if step.shape or not jnp.issubdtype(step.dtype, jnp.integer):
            raise ValueError(f"divide_and_shuffle: step is {step.dtype}{list(step.shape)}; it must be one integer")
        period = jnp.maximum((table[:, 0] >= 0).sum(), 1)
        row = lax.dynamic_index_in_dim(table, step % period, keepdims=False)
        together = (row == row[lax.axis_index(names)]).sum()
        return jax.tree.map(lambda leaf: mean_of(leaf, together), group_sum(params, row, axis_name))

    return average


def mean_of(total: jax.Array, ranks: jax.Array | int) -> jax.Array:
    """The mean over `ranks` in the type of their sum, so that steps can follow one another; integers are floored."""
    mean = total // ranks if jnp.issubdtype(total.dtype, jnp.integer) else total / ranks
    return mean.astype(total.dtype)


def group_table(plan: str | os.PathLike[str] | Plan | Iterations | Groups) -> NDArray[np.int32]:
    """The pattern as data, int32 [rows, ranks]: the group of every rank in each iteration of a period.

    Rows after the period are -1. There are 32, or the period's if that is longer, so that every pattern that the
    planner makes of these ranks has the same shape.

    Args:
      plan: as for `divide_and_shuffle`, or a plan's groups.

    Raises:
      PlanError, ValueError: as for `divide_and_shuffle`.
    """
    if isinstance(plan, Groups):
        iterations: Iterations = plan.iterations
    elif isinstance(plan, str | os.PathLike | Plan):
        iterations = grouped(plan)[1].iterations
    else:
        iterations = plan
    if not iterations:
        raise ValueError("iterations is empty; it must have the groups of at least one")
    try:
        ranks = sum(map(len, iterations[0]))
    except TypeError:
        raise ValueError(
            f"iterations is {iterations!r}; it must be a sequence of iterations of groups of ranks.\n"
            "  Cure: [[[0, 1], [2, 3]]] for one iteration of two groups."
        ) from None
    table = np.full((max(ROWS, len(iterations)), ranks), -1, np.int32)
    for t, (row, groups) in enumerate(zip(table, iterations, strict=False)):
        if sorted(rank for group in groups for rank in group) != list(range(ranks)):
            raise ValueError(f"iterations[{t}] is {groups}; its groups must hold each of the {ranks} ranks once")
        for index, group in enumerate(groups):
            row[list(group)] = index
    return table


def grouped(plan: str | os.PathLike[str] | Plan) -> tuple[Plan, Groups]:
    """The plan and its groups.

    Raises:
      PlanError: it cannot be read, or decides none.
    """
    loaded = plan if isinstance(plan, Plan) else load(plan)
    if loaded.groups is None:
        raise PlanError(
            f"divide_and_shuffle: plan {loaded.hash[:8]} decides no groups: its profile says of no rack and no NIC "
            "that it is slow.\n  Cure: plan with `jaxcomm plan --racks 4+4 --uplink 4 --model-bytes 1GiB`, or pass the "
            "groups of each iteration."
        )
    return loaded, loaded.groups


def consensus_distance(params: Any, axis_name: AxisName) -> jax.Array:
    """Distance between the ranks' parameters: the root mean square over ranks of a rank's distance to their mean.

    It is computed in float32, or wider where the parameters are.
    """
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), params)
    apart = jax.tree.map(lambda leaf, middle: jnp.sum(jnp.square(jnp.abs(leaf - middle))), wide, pmean(wide, axis_name))
    distance: jax.Array = jnp.sqrt(pmean(sum(jax.tree.leaves(apart)), axis_name))
    return distance
