"""Averages gradients with one call per bucket of the plan's step: after the backward pass, or inside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxcomm.collectives import active_plan, axes
from jaxcomm.collectives.axes import AxisName
from jaxcomm.collectives.leaves import leaf_name
from jaxcomm.collectives.primitive import replace_collectives
from jaxcomm.errors import PlanError

if TYPE_CHECKING:
    from jaxcomm.plan import Plan

Leaves = list[Any]
_Tree = TypeVar("_Tree")


def pmean_buckets(grads: _Tree, axis_name: AxisName, *, plan: active_plan.PlanLike = None) -> _Tree:
    """Averages gradients over the ranks of `axis_name` as `jaxcomm.pmean` does, with one call per bucket of the plan.

    A call waits for its own gradients only, so in a jitted step its sum may start while the backward pass still runs.
    The call runs the plan's schedule for the bucket's bytes. The direct schedule gives the same bits as one call with
    all gradients. Other schedules may give other bits, because their order of addition depends on an element's place in
    the buffer.

    Args:
      grads: tree of arrays. Their names (`jax.tree_util.keystr` with `simple=True, separator="/"`) and bytes must equal
        the names and bytes of the gradients in `plan.step`; empty arrays are not compared.
      axis_name: axis of the mesh, or several.
      plan: as for `jaxcomm.psum`. The plan must have a step, as every plan from a profile with gradients has.

    Raises:
      PlanError: no plan, a plan without a step, or a plan for other gradients.
      NameError, JaxcommError: as `jaxcomm.psum`.

    Example:
      >>> grads = {"front": jnp.ones((64, 64)), "back": jnp.ones((64, 1))}
      >>> mean = partial(jaxcomm.train.pmean_buckets, axis_name="data", plan="plan.json")
      >>> jax.jit(jax.shard_map(mean, mesh=mesh, in_specs=P(), out_specs=P()))(grads)["front"].shape
      (64, 64)
    """
    axes.check("train.pmean_buckets", axis_name)
    axes.say_if_alike("train.pmean_buckets", grads, axes.of_mesh(axis_name))
    leaves, tree, buckets, digest = _planned("pmean_buckets", grads, axis_name, plan)
    for number, bucket in enumerate(buckets, 1):
        means = _mean(axis_name, digest, f"bucket {number} of {len(buckets)}", [leaves[i] for i in bucket])
        for i, mean in zip(bucket, means, strict=True):
            leaves[i] = mean
    result: _Tree = tree.unflatten(leaves)
    return result


def pmean_in_backward(params: _Tree, axis_name: AxisName, *, plan: active_plan.PlanLike = None) -> _Tree:
    """Returns the parameters unchanged; their gradients are averaged over the ranks, bucket by bucket.

        def loss(params, batch):
            return loss_of(train.pmean_in_backward(params, "data"), batch)

        grads = jax.grad(loss)(params, batch)  # no pmean needed

    If a jitted step's backward pass is a loop over layers, call this function in the loop's body on one layer's
    parameters: the gradients are then averaged inside the loop. In other jitted steps, `pmean_buckets` allows XLA the
    same overlap. Only reverse-mode differentiation is supported. With check_vma, parameters shared by all ranks get the
    mean gradient, whereas `jax.grad` alone gives the sum.

    Args:
      params: tree of arrays; names and bytes must equal the names and bytes of the gradients in `plan.step`.
      axis_name, plan: as for `pmean_buckets`.

    Raises:
      PlanError, NameError, JaxcommError: as `pmean_buckets`.

    Example:
      >>> def loss(params, x):
      ...     params = jaxcomm.train.pmean_in_backward(params, "data", plan="plan.json")
      ...     return jnp.mean(x @ params["front"] @ params["back"])
      >>> params = {"front": jnp.ones((64, 64)), "back": jnp.ones((64, 1))}
      >>> step = jax.shard_map(jax.grad(loss), mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False)
      >>> jax.jit(step)(params, jnp.ones((8, 64)))["back"].shape
      (64, 1)
    """
    axes.check("train.pmean_in_backward", axis_name)
    leaves, tree, buckets, digest = _planned("pmean_in_backward", params, axis_name, plan)
    for number, bucket in enumerate(buckets, 1):
        average = partial(_mean, axis_name, digest, f"bucket {number} of {len(buckets)}")
        for i, leaf in zip(bucket, _averaged([leaves[i] for i in bucket], axes.names(axis_name), average), strict=True):
            leaves[i] = leaf
    result: _Tree = tree.unflatten(leaves)
    return result


def _averaged(members: Leaves, over: Sequence[Any], average: Callable[[Leaves], Leaves]) -> Leaves:
    """Returns the members of one bucket unchanged, and averages their gradients in the backward pass.

    With check_vma the returned members vary over `over`, and each gradient varies over the axes of its own member.
    """
    before = [jax.typeof(member).manual_axis_type.varying for member in members]
    return in_backward(
        members,
        lambda members: [axes.varying(member, over) for member in members],
        lambda cotangents: [axes.varying(*each) for each in zip(average(cotangents), before, strict=True)],
    )


def in_backward(leaves: Leaves, forward: Callable[[Leaves], Leaves], backward: Callable[[Leaves], Leaves]) -> Leaves:
    """Returns `forward(leaves)`. One call of `backward` maps all results' cotangents to the cotangents of `leaves`."""

    @jax.custom_vjp
    def hooked(leaves: Leaves) -> Leaves:
        return forward(leaves)

    hooked.defvjp(lambda leaves: (forward(leaves), None), lambda _, cotangents: (backward(cotangents),))
    result: Leaves = hooked(leaves)
    return result


def named(tree: Any) -> dict[str, jax.Array]:
    """The arrays of a tree, in the tree's order, keyed by the names that plans and profiles give to gradients.

    Raises:
      ValueError: two arrays have the same name.
    """
    found: dict[str, jax.Array] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = leaf_name(path)
        if name in found:
            raise ValueError(
                f"two gradients are called {name!r}.\n  Cure: rename one of them, so that a plan can name each."
            )
        found[name] = jnp.asarray(leaf)
    return found


def _planned(
    where: str, tree: Any, axis_name: AxisName, plan: active_plan.PlanLike
) -> tuple[Leaves, Any, Sequence[Sequence[int]], str]:
    """The tree's leaves and structure, the indices of each bucket's leaves, and the plan's hash."""
    arrays = named(tree)
    over = axes.of_mesh(axis_name)
    chosen = active_plan.active_plan(plan, over)
    if chosen is None:
        raise PlanError(
            f"{where}: there is no plan, so there are no buckets.\n"
            "  Cure: jaxcomm.use_plan(…) or `plan=`, or jaxcomm.pmean, which makes one call of all gradients."
        )
    if chosen.step is None:
        raise PlanError(
            f"{where}: plan {chosen.hash[:8]} has no step, as its profile has no gradients.\n"
            "  Cure: `jaxcomm profile step`, and plan again, or jaxcomm.pmean, which makes one call of all gradients."
        )
    if plan is not None:
        active_plan.require_ranks(chosen.hash, [lax.axis_size(over)], f"{where} over '{','.join(map(str, over))}'")
    place = {name: i for i, name in enumerate(arrays)}
    _check(where, {name: array.nbytes for name, array in arrays.items() if array.nbytes}, chosen)
    buckets = [[place[gradient.name] for gradient in members] for members in chosen.step.members()]
    buckets[-1] += [place[name] for name, array in arrays.items() if not array.nbytes]
    return list(arrays.values()), jax.tree.structure(tree), buckets, chosen.hash


def _check(where: str, here: dict[str, int], plan: Plan) -> None:
    assert plan.step is not None
    there = {gradient.name: gradient.bytes for gradient in plan.step.gradients}
    problem = None
    if missing := [name for name in there if name not in here]:
        problem = f"gradient {missing[0]!r} of plan {plan.hash[:8]} is not in this tree, which has {_some(here)}"
    elif unknown := [name for name in here if name not in there]:
        problem = f"gradient {unknown[0]!r} is not in the step of plan {plan.hash[:8]}, which has {_some(there)}"
    elif other := [name for name in here if here[name] != there[name]]:
        name = other[0]
        problem = f"gradient {name!r} has {here[name]} bytes, but {there[name]} in plan {plan.hash[:8]}"
    elif len(there) != len(plan.step.gradients):
        problem = f"plan {plan.hash[:8]} has two gradients of one name"
    if problem:
        raise PlanError(
            f"{where}: {problem}.\n"
            "  Cure: profile these gradients (`jaxcomm profile step`) and plan again, or jaxcomm.pmean, which makes "
            "one call of all."
        )


def _some(names: dict[str, int]) -> str:
    return (", ".join(map(repr, [*names][:3])) or "none") + (f", … ({len(names)})" if len(names) > 3 else "")


def _mean(axis_name: AxisName, digest: str, bucket: str, members: Leaves) -> Leaves:
    means: Leaves = replace_collectives(partial(lax.pmean, axis_name=axis_name), digest, bucket)(members)
    return means
