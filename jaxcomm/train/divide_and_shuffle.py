"""Parameters averaged over a few ranks at a time, in groups that change from step to step (DS-Sync)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from jaxcomm.collectives import axes
from jaxcomm.collectives.api import pmean
from jaxcomm.collectives.axes import AxisName
from jaxcomm.collectives.grouped import group_sum
from jaxcomm.collectives.leaves import runs_of
from jaxcomm.errors import PlanError
from jaxcomm.plan import Plan, load
from jaxcomm.plan.groups import Groups

Iterations = Sequence[Sequence[Sequence[int]]]
_Tree = TypeVar("_Tree")

ROWS: Final = 32  # minimum number of rows of a table: the longest period that the planner makes


class ParameterAverage(Protocol):
    """Averages the parameters of a step."""

    def __call__(self, params: _Tree, step: jax.Array | int, /) -> _Tree: ...


class Shuffled(Protocol):
    """Averages the parameters of a step; `table`, if given, replaces the plan's groups."""

    def __call__(
        self, params: _Tree, step: jax.Array | int, table: jax.Array | NDArray[np.int32] | None = None
    ) -> _Tree: ...


def divide_and_shuffle(
    plan: str | os.PathLike[str] | Plan | Iterations, axis_name: AxisName, *, bucket_bytes: int | None = None
) -> Shuffled:
    """Returns a function that averages parameters over the groups of iteration `step mod period`.

    The function takes (parameters, step, table), keeps types, and rounds a mean of integers down. One compiled step
    serves all iterations. Without a table the plan's pattern is part of the program. With a table, from `group_table`
    or `adjust_groups`, the pattern is data, and another pattern needs no compilation. The ranks of a group get the same
    bits. Call the function after the local update, inside `jax.shard_map` over per-rank parameters:

        average = train.divide_and_shuffle("plan.json", "data")
        params = average(optax.apply_updates(params, updates), step, table)

    With `bucket_bytes` the average of a layer overlaps with the backward pass of the layers before it. A call waits
    only for its own parameters: it starts when the gradients and updates of these parameters are known. An update that
    first needs all gradients, such as clipping by their norm, leaves no overlap. Each further call adds its latency.
    The values are the same as without `bucket_bytes`, except that a call's size may decide its schedule and so the
    order of addition. `jaxcomm.stats()` and errors name the bucket.

    At the end, or for evaluation, `jaxcomm.pmean` averages over all ranks. Optax computes each rank's running average
    of its weights (the source's SWA). At the end, take the mean of these averages over the ranks:

        swa = optax.incremental_update(params, swa, step_size=0.01)  # after the average, in every step
        final = jaxcomm.pmean(swa, "data")  # once

    BatchNorm's running statistics belong to the weights with which they were measured. For a first guess, average the
    statistics in the same way as the weights. Then measure them again with some batches, for the averaged weights.

    Args:
      plan: a plan whose groups are used, as the path of a plan file or a `jaxcomm.plan.Plan`; or the groups of each
        iteration of one period. Every iteration holds each rank once.
      axis_name: axis of the mesh, or several axes, of which the first varies slowest.
      bucket_bytes: each call averages consecutive arrays of the tree with at least this many bytes; 1: one call for
        each array; None: one call for all arrays.

    Raises:
      PlanError: the plan cannot be read, or has no groups.
      ValueError: no iteration, groups that do not hold each rank once, fewer than 1 byte; or, during tracing, an axis
        or a table of another number of ranks, or a step that is not an integer.
      NameError, TypeError: during tracing, no such axis, or an element type that the core does not support.

    Source: Wang et al., "DS-Sync: Addressing Network Bottlenecks with Divide-and-Shuffle Synchronization", section III.

    Example:
      >>> pattern = [[[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1, 4, 5], [2, 3, 6, 7]]]
      >>> average = jaxcomm.train.divide_and_shuffle(pattern, "data")
      >>> run = jax.shard_map(average, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"))
      >>> jax.jit(run)(jnp.arange(8.0), 0).tolist()
      [1.5, 1.5, 1.5, 1.5, 5.5, 5.5, 5.5, 5.5]
    """
    if bucket_bytes is not None and (not isinstance(bucket_bytes, int) or bucket_bytes < 1):
        raise ValueError(
            f"divide_and_shuffle: bucket_bytes is {bucket_bytes!r}; it must be a whole number of bytes, at least 1.\n"
            "  Cure: 2**18 for a call per 256 KiB, or None for one call."
        )
    own, names = group_table(plan), axes.names(axis_name)

    def average(params: _Tree, step: jax.Array | int, table: jax.Array | NDArray[np.int32] | None = None) -> _Tree:
        axes.check("train.divide_and_shuffle", axis_name)
        table = jnp.asarray(own if table is None else table)
        if own.shape[1] != (ranks := lax.axis_size(names)):
            raise ValueError(
                f"divide_and_shuffle: the groups are for {own.shape[1]} ranks, but axis {axis_name!r} has {ranks}.\n"
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
        leaves: list[Any]
        tree: Any
        leaves, tree = jax.tree.flatten(params)
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        runs = [slice(None)] if bucket_bytes is None else [*runs_of(leaves, bucket_bytes)]
        for number, run in enumerate(runs, 1):
            bucket = f"bucket {number} of {len(runs)}" if len(runs) > 1 else ""
            leaves[run] = [mean_of(total, together) for total in group_sum(leaves[run], row, axis_name, bucket)]
        result: _Tree = tree.unflatten(leaves)
        return result

    return average


def mean_of(total: jax.Array, ranks: jax.Array | int) -> jax.Array:
    """Divides a sum by `ranks` and keeps its type, so that the next step gets the same types. Integers are floored."""
    mean = total // ranks if jnp.issubdtype(total.dtype, jnp.integer) else total / ranks
    return mean.astype(total.dtype)


def group_table(plan: str | os.PathLike[str] | Plan | Iterations | Groups) -> NDArray[np.int32]:
    """The pattern as data, int32 [rows, ranks]: the group of every rank in each iteration of a period.

    Rows after the period are -1. There are 32 rows, or one for each iteration if the period is longer. All patterns
    that the planner makes for these ranks therefore have the same shape.

    Args:
      plan: as for `divide_and_shuffle`, or a plan's groups.

    Raises:
      PlanError, ValueError: as for `divide_and_shuffle`.

    Example:
      >>> jaxcomm.train.group_table([[[0, 1], [2, 3]], [[0, 2], [1, 3]]])[:3]
      array([[ 0,  0,  1,  1],
             [ 0,  1,  0,  1],
             [-1, -1, -1, -1]], dtype=int32)
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
    """Returns the plan, loaded if it is a path, and its groups.

    Raises:
      PlanError: the plan cannot be read, or has no groups.
    """
    loaded = plan if isinstance(plan, Plan) else load(plan)
    if loaded.groups is None:
        raise PlanError(
            f"divide_and_shuffle: plan {loaded.hash[:8]} has no groups: its profile has no slow rack and no slow NIC.\n"
            "  Cure: plan with `jaxcomm plan --racks 4+4 --uplink 4 --model-bytes 1GiB`, or pass the groups of each "
            "iteration."
        )
    return loaded, loaded.groups


def consensus_distance(params: Any, axis_name: AxisName) -> jax.Array:
    """Distance between the ranks' parameters: the root mean square, over ranks, of the distance to the ranks' mean.

    The distance is computed in float32, or in the parameters' type if that type is wider.

    Example:
      >>> distance = partial(jaxcomm.train.consensus_distance, axis_name="data")
      >>> run = jax.shard_map(distance, mesh=mesh, in_specs=P("data"), out_specs=P())
      >>> jax.jit(run)(jnp.array([-1.0, 1.0] * 4))
      Array(1., dtype=float32)
    """
    wide = jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), params)
    apart = jax.tree.map(lambda leaf, middle: jnp.sum(jnp.square(jnp.abs(leaf - middle))), wide, pmean(wide, axis_name))
    distance: jax.Array = jnp.sqrt(pmean(sum(jax.tree.leaves(apart)), axis_name))
    return distance
