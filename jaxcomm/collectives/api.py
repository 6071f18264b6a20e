"""The collectives that users call: lax's, with a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax import lax

from jaxcomm.collectives import axes, communicator
from jaxcomm.collectives.axes import AxisName
from jaxcomm.collectives.bounded import bounded_sum
from jaxcomm.collectives.drop import Drop, check_drop
from jaxcomm.collectives.primitive import replace_collectives, vary_together

Groups = Sequence[Sequence[int]] | None


def psum(
    x: Any,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    plan: communicator.PlanLike = None,
    drop: Drop | None = None,
) -> Any:
    """Sums `x` over the ranks of `axis_name`, as `jax.lax.psum` does; a whole tree is one call.

    All ranks get the same bits. jax.lax carries calls that the core cannot (8-bit floats; exported steps), and
    one warning is logged. With check_vma=True a sum of values that all ranks already share is logged once, too:
    `jax.grad` sums the gradients of parameters that the ranks share.

    Args:
      x: array or tree of arrays. Booleans count as int32; Python numbers are multiplied by the number of ranks.
      axis_name: axis of the mesh, or several.
      axis_index_groups: groups of indices along the axis that sum among themselves; of unlike sizes only where
        check_vma is False, as in lax.
      plan: path of a plan file, a `jaxcomm.plan.Plan`, or a mapping from axes to these; None runs the active plan
        (`jaxcomm.use_plan`) if that is for this number of ranks, or else the direct schedule.
      drop: the part of a gradient's sum that may be left out; None: no part.

    Raises:
      NameError: no such axis here.
      PlanError: `plan` is for another number of ranks.
      JaxcommError: `plan` is no plan.
    """
    if drop is None:
        return _call(lax.psum, plan, x, axis_name, axis_index_groups=axis_index_groups)
    check_drop("psum", drop)
    axes.check("psum", axis_name)
    _ranks(axis_name, axis_index_groups)  # groups of unlike sizes are refused
    total = partial(psum, axis_name=axis_name, axis_index_groups=axis_index_groups, plan=plan)
    return bounded_sum(x, drop, total, axis_name, axis_index_groups)[0]


def pmean(
    x: Any,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    plan: communicator.PlanLike = None,
    drop: Drop | None = None,
) -> Any:
    """Averages `x` over the ranks of `axis_name`, as `jax.lax.pmean` does. Arguments and errors are those of `psum`.

    Groups of unlike sizes are a ValueError.
    """
    if axis_index_groups is not None:
        _ranks(axis_name, axis_index_groups)  # lax divides by the first group's size, whatever the others' are
    if drop is None:
        return _call(lax.pmean, plan, x, axis_name, axis_index_groups=axis_index_groups)
    total = psum(x, axis_name, axis_index_groups=axis_index_groups, plan=plan, drop=drop)
    ranks = _ranks(axis_name, axis_index_groups)
    return jax.tree.map(lambda leaf: leaf / ranks, total)


def pmax(x: Any, axis_name: AxisName, *, axis_index_groups: Groups = None, plan: communicator.PlanLike = None) -> Any:
    """The largest `x` of the ranks of `axis_name`, as `jax.lax.pmax`: not differentiable. Arguments as for `psum`.

    A NaN of any rank is the result on all of them, as in `jax.lax.max`; `jax.lax.pmax` may lose it on CPUs.
    """
    return _call(lax.pmax, plan, x, axis_name, axis_index_groups=axis_index_groups)


def pmin(x: Any, axis_name: AxisName, *, axis_index_groups: Groups = None, plan: communicator.PlanLike = None) -> Any:
    """The smallest `x` of the ranks of `axis_name`, as `jax.lax.pmin`: not differentiable. Arguments as for `psum`.

    A NaN is treated as by `pmax`.
    """
    return _call(lax.pmin, plan, x, axis_name, axis_index_groups=axis_index_groups)


def psum_scatter(
    x: Any,
    axis_name: AxisName,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: Groups = None,
    tiled: bool = False,
    plan: communicator.PlanLike = None,
) -> Any:
    """Sums `x` over the ranks of `axis_name` and leaves each rank its part, as `jax.lax.psum_scatter` does.

    Between processes it follows plans; within one, where every byte is read and stored once, it needs none.

    Args:
      x: array or tree of arrays.
      axis_name: axis of the mesh, or a tuple of them, the first of which counts slowest.
      scatter_dimension: the dimension that is cut.
      axis_index_groups: as for `psum`.
      tiled: False: the dimension has one index per rank and is dropped. True: it is divided by the number of ranks.
      plan: as for `psum`.

    Raises:
      NameError, PlanError, JaxcommError: as for `psum`.
      ValueError: a dimension that the ranks do not divide.
    """
    dimensions = {"scatter_dimension": scatter_dimension, "tiled": tiled}
    return _call(lax.psum_scatter, plan, x, axis_name, axis_index_groups=axis_index_groups, **dimensions)


def all_gather(
    x: Any,
    axis_name: AxisName,
    *,
    axis_index_groups: Groups = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
    plan: communicator.PlanLike = None,
) -> Any:
    """Gathers the `x` of all ranks of `axis_name`, as `jax.lax.all_gather` does.

    Follows plans where `psum_scatter` does.

    Args:
      x: array or tree of arrays.
      axis_name: axis of the mesh, or a tuple of them, the first of which counts slowest.
      axis_index_groups: as for `psum`.
      axis: the dimension of the result that the ranks lie along.
      tiled: False: a new dimension. True: the operands are concatenated along an existing one.
      to: type of the result under check_vma, as in lax: "varying", "invarying" or "reduced".
      plan: as for `psum`.

    Raises:
      NameError, PlanError, JaxcommError: as for `psum`.
    """
    dimensions = {"axis": axis, "tiled": tiled, "to": to}
    return _call(lax.all_gather, plan, x, axis_name, axis_index_groups=axis_index_groups, **dimensions)


def pcast(x: Any, axis_name: AxisName, *, to: str) -> Any:
    """`x` as another type under check_vma, as `jax.lax.pcast` does.

    Where that makes a tree vary over `axis_name`, its gradients are summed by one call, under the active plan, and not
    by one for each array: parameters of a loss whose `jax.shard_map` is differentiated.

    Args:
      x: array or tree of arrays.
      axis_name: axis of the mesh, or a tuple of them.
      to: "varying", "reduced" or "unreduced".

    Raises:
      NameError: no such axis here.
    """
    axes.check("pcast", axis_name)
    digest = communicator.plan_hash(None, axes.of_mesh(axis_name))
    return vary_together(partial(lax.pcast, axis_name=axis_name, to=to), digest)(x)


def _call(
    function: Callable[..., Any], plan: communicator.PlanLike, x: Any, axis_name: AxisName, **options: Any
) -> Any:
    axes.check(function.__name__, axis_name)
    over = axes.of_mesh(axis_name)
    if function in (lax.psum, lax.pmean):
        axes.say_if_alike(function.__name__, x, over)
    digest = communicator.plan_hash(plan, over)
    if plan is not None:
        groups = options["axis_index_groups"]
        sizes = [lax.axis_size(over)] if groups is None else map(len, groups)
        communicator.require_ranks(digest, sizes, f"{function.__name__} over '{','.join(map(str, over))}'")
    return replace_collectives(partial(function, axis_name=axis_name, **options), digest)(x)


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
