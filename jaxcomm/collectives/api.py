"""The collectives that users call. They do what jax.lax's collectives do, but follow a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import jax
from jax import lax

from jaxcomm.collectives import active_plan, axes
from jaxcomm.collectives.axes import AxisName
from jaxcomm.collectives.drops.bounded_sums import bounded_sum
from jaxcomm.collectives.drops.drop import Drop, check_drop
from jaxcomm.collectives.primitive import replace_collectives, vary_together

Groups = Sequence[Sequence[int]] | None
_Tree = TypeVar("_Tree")


def psum(
    x: _Tree,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    plan: active_plan.PlanLike = None,
    drop: Drop | None = None,
) -> _Tree:
    """Sums `x` over the ranks of `axis_name`, as `jax.lax.psum` does; a whole tree is one call.

    All ranks get the same bits. Calls that the core cannot run (8-bit floats, exported steps) run as jax.lax's
    collectives, with one warning. With check_vma=True, a sum of values that all ranks already share is logged once:
    these values are often gradients that `jax.grad` itself has summed.

    Args:
      x: array or tree of arrays. Booleans count as int32; Python numbers are multiplied by the number of ranks.
      axis_name: axis of the mesh, or several.
      axis_index_groups: groups of indices along the axis, each with a sum of its own. Sizes may differ only with
        check_vma=False, as in lax.
      plan: path of a plan file, a `jaxcomm.plan.Plan`, or a mapping from axes to such values. None: the call runs the
        active plan (`jaxcomm.use_plan`) if this plan is for the call's number of ranks, and otherwise the direct
        schedule.
      drop: the part of a gradient's sum that may be left out; None: no part.

    Raises:
      NameError: no such axis here.
      PlanError: `plan` is for another number of ranks.
      JaxcommError: `plan` is not a plan.

    Example:
      >>> total = jax.shard_map(lambda x: jaxcomm.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())
      >>> total(jnp.arange(8.0))
      Array([28.], dtype=float32)
    """
    if drop is None:
        return _call(lax.psum, plan, x, axis_name, axis_index_groups=axis_index_groups)
    check_drop("psum", drop)
    axes.check("psum", axis_name)
    _ranks(axis_name, axis_index_groups)  # raises if groups differ in size
    total = partial(psum, axis_name=axis_name, axis_index_groups=axis_index_groups, plan=plan)
    result: _Tree = bounded_sum(x, drop, total, axis_name, axis_index_groups)[0]
    return result


def pmean(
    x: _Tree,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    plan: active_plan.PlanLike = None,
    drop: Drop | None = None,
) -> _Tree:
    """Averages `x` over the ranks of `axis_name`, as `jax.lax.pmean` does. Arguments and errors as for `psum`.

    Groups of unequal sizes raise ValueError.

    Example:
      >>> mean = jax.shard_map(lambda x: jaxcomm.pmean(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())
      >>> mean({"kernel": jnp.arange(8.0)})
      {'kernel': Array([3.5], dtype=float32)}
    """
    if axis_index_groups is not None:
        _ranks(axis_name, axis_index_groups)  # raises if sizes differ: lax would divide by the first group's size
    if drop is None:
        return _call(lax.pmean, plan, x, axis_name, axis_index_groups=axis_index_groups)
    total = psum(x, axis_name, axis_index_groups=axis_index_groups, plan=plan, drop=drop)
    ranks = _ranks(axis_name, axis_index_groups)
    mean: _Tree = jax.tree.map(lambda leaf: leaf / ranks, total)
    return mean


def pmax(
    x: _Tree, axis_name: AxisName, *, axis_index_groups: Groups = None, plan: active_plan.PlanLike = None
) -> _Tree:
    """Takes the maximum of `x` over the ranks of `axis_name`, as `jax.lax.pmax` does. Not differentiable.

    Arguments as for `psum`. If an element is NaN on any rank, the result's element is NaN on all ranks, as in
    `jax.lax.max`. On CPUs `jax.lax.pmax` may lose the NaN.
    """
    return _call(lax.pmax, plan, x, axis_name, axis_index_groups=axis_index_groups)


def pmin(
    x: _Tree, axis_name: AxisName, *, axis_index_groups: Groups = None, plan: active_plan.PlanLike = None
) -> _Tree:
    """Takes the minimum of `x` over the ranks of `axis_name`, as `jax.lax.pmin` does. Not differentiable.

    Arguments as for `psum`, NaN as for `pmax`.
    """
    return _call(lax.pmin, plan, x, axis_name, axis_index_groups=axis_index_groups)


def psum_scatter(
    x: _Tree,
    axis_name: AxisName,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Groups = None,
    tiled: bool = False,
    plan: active_plan.PlanLike = None,
) -> _Tree:
    """Sums `x` over the ranks of `axis_name` and gives each rank one part of the sum, as `jax.lax.psum_scatter` does.

    Calls between processes follow plans. Calls within a process follow none, because they already read and store every
    byte only once.

    Args:
      x: array or tree of arrays.
      axis_name: axis of the mesh, or a tuple of axes, along which ranks are numbered in row-major order.
      scatter_dimension: the dimension that is divided among the ranks.
      axis_index_groups: as for `psum`.
      tiled: False: the dimension has one index per rank, and the result lacks it. True: its length is divided by the
        number of ranks.
      plan: as for `psum`.

    Raises:
      NameError, PlanError, JaxcommError: as for `psum`.
      ValueError: the number of ranks does not divide the dimension.

    Example:
      >>> part = jax.shard_map(
      ...     lambda x: jaxcomm.psum_scatter(x, "data", tiled=True), mesh=mesh, in_specs=P(), out_specs=P("data")
      ... )
      >>> part(jnp.arange(8.0)).tolist()
      [0.0, 8.0, 16.0, 24.0, 32.0, 40.0, 48.0, 56.0]
    """
    dimensions = {"scatter_dimension": scatter_dimension, "tiled": tiled}
    return _call(lax.psum_scatter, plan, x, axis_name, axis_index_groups=axis_index_groups, **dimensions)


def all_gather(
    x: _Tree,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    axis: int = 0,
    tiled: bool = False,
    to: Literal["varying", "invarying", "reduced"] = "varying",
    plan: active_plan.PlanLike = None,
) -> _Tree:
    """Gathers the `x` of all ranks of `axis_name`, as `jax.lax.all_gather` does.

    Calls between processes follow plans, and calls within a process follow none, as for `psum_scatter`.

    Args:
      x: array or tree of arrays.
      axis_name: axis of the mesh, or a tuple of axes, along which ranks are numbered in row-major order.
      axis_index_groups: as for `psum`.
      axis: the dimension of the result along which the ranks' operands lie.
      tiled: False: `axis` is a new dimension. True: the operands are concatenated along the existing dimension `axis`.
      to: type of the result under check_vma, as in lax: "varying", "invarying" or "reduced".
      plan: as for `psum`.

    Raises:
      NameError, PlanError, JaxcommError: as for `psum`.

    Example:
      >>> rows = jax.shard_map(
      ...     lambda x: jaxcomm.all_gather(x, "data", tiled=True), mesh=mesh, in_specs=P("data"), out_specs=P("data")
      ... )
      >>> rows(jnp.arange(8)).shape  # each rank has all eight
      (64,)
    """
    dimensions = {"axis": axis, "tiled": tiled, "to": to}
    return _call(lax.all_gather, plan, x, axis_name, axis_index_groups=axis_index_groups, **dimensions)


def pcast(x: _Tree, axis_name: AxisName, *, to: Literal["varying", "reduced", "unreduced"]) -> _Tree:
    """Casts `x` to another type under check_vma, as `jax.lax.pcast` does.

    If the cast makes a tree vary over `axis_name`, one call under the active plan sums the gradients of all arrays in
    the tree. Cast a loss's parameters in this way if the `jax.shard_map` around the loss is differentiated.

    Args:
      x: array or tree of arrays.
      axis_name: axis of the mesh, or a tuple of axes.
      to: "varying", "reduced" or "unreduced".

    Raises:
      NameError: no such axis here.
    """
    axes.check("pcast", axis_name)
    digest = active_plan.plan_hash(None, axes.of_mesh(axis_name))
    result: _Tree = vary_together(partial(lax.pcast, axis_name=axis_name, to=to), digest)(x)
    return result


def _call(
    function: Callable[..., Any], plan: active_plan.PlanLike, x: _Tree, axis_name: AxisName, **options: Any
) -> _Tree:
    axes.check(function.__name__, axis_name)
    over = axes.of_mesh(axis_name)
    if function in (lax.psum, lax.pmean):
        axes.say_if_alike(function.__name__, x, over)
    digest = active_plan.plan_hash(plan, over)
    if plan is not None:
        groups = options["axis_index_groups"]
        sizes = [lax.axis_size(over)] if groups is None else map(len, groups)
        active_plan.require_ranks(digest, sizes, f"{function.__name__} over '{','.join(map(str, over))}'")
    result: _Tree = replace_collectives(partial(function, axis_name=axis_name, **options), digest)(x)
    return result


def _ranks(axis_name: AxisName, groups: Groups) -> int:
    """The number of ranks that sum together."""
    if groups is None:
        return lax.axis_size(axis_name)
    sizes = {len(group) for group in groups}
    if len(sizes) != 1:
        raise ValueError(
            f"axis_index_groups have {sorted(sizes)} ranks; for a mean or with a drop they must have one size.\n"
            "  Cure: make them equal, or divide the `psum` without a drop by each group's size."
        )
    return sizes.pop()
