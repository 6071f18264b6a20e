"""Averages the gradients that each rank of a mesh axis computes for its part of the batch.

Under `jax.jit`, XLA makes the all-reduces of such gradients, and these all-reduces follow no plan. Here `jax.shard_map`
makes the batch's axis manual. Each rank differentiates the loss of its part of the batch, and one `pmean` averages all
results. XLA still partitions the other axes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxcomm.collectives import active_plan, api, axes
from jaxcomm.collectives.axes import AxisName
from jaxcomm.collectives.jit.arguments import split_arguments
from jaxcomm.collectives.jit.split import WHERE, Split, axes_of, is_array, is_inexact, leaf_specs
from jaxcomm.collectives.jit.ties import settled
from jaxcomm.errors import JaxcommError


class Results(NamedTuple):
    """The results of differentiating a loss; all leaves are arrays.

    Attributes:
      value: the loss.
      grads: tree of gradients.
      aux: tree of auxiliary outputs; None if the loss has none.
      state: tree of arrays that the loss changed in its arguments. After averaging, floats are means over the ranks.
        Values of other types must be the same on all ranks.
    """

    value: Any
    grads: Any
    aux: Any
    state: Any = None


def averaged(
    fun: Callable[..., Any],
    differentiate: Callable[..., Results],
    axis_name: AxisName,
    *,
    has_aux: bool,
    in_specs: Any,
    aux_specs: Any,
    mesh: Any,
    plan: active_plan.PlanLike,
) -> Callable[..., Results]:
    """Returns a function that runs `differentiate` on each rank's part of the arguments and averages the results.

    The function takes the positions of the arguments that are the same on all ranks, such as the parameters; then the
    `args` and the `kwargs` of `fun`. Inside a `jax.shard_map` over the axis, the arguments already are one rank's part.

    Args:
      fun: the loss, traced to find the shapes of its outputs.
      differentiate: takes the arguments of `fun`.
      axis_name, has_aux, in_specs, aux_specs, mesh, plan: as for `value_and_grad`.

    Raises:
      JaxcommError, NameError, TypeError, ValueError: as `value_and_grad`.
    """
    names = axes.names(axis_name)

    @functools.partial(jax.jit, static_argnums=0)
    def run(split: Split, arrays: Sequence[Any]) -> Results:
        specs = aux_specs
        if has_aux and specs is None:
            specs = split.result_specs(lambda *args, **kwargs: _auxiliary(fun(*args, **kwargs)), arrays)

        def on_rank(*args: Any, **kwargs: Any) -> Results:
            found = differentiate(*args, **kwargs)
            of_aux = leaf_specs("aux_specs", specs, found.aux, "auxiliary output")
            return _mean(found, [not axes_of(spec) for spec in of_aux], axis_name, plan)

        results: Results = split.map(on_rank, Results(P(), P(), specs, P()), arrays)
        return results

    splits: dict[Any, Split] = {}

    def averages(shared: Collection[int], args: Sequence[Any], kwargs: dict[str, Any]) -> Results:
        if _are_bound(names):
            local = [_varying(arg, names) if i in shared else arg for i, arg in enumerate(args)]
            return _mean(differentiate(*local, **kwargs), None, axis_name, plan)
        split, arrays, guesses = split_arguments(names, mesh, tuple(args), kwargs, shared, in_specs)
        key = (split, guesses, tuple(map(jax.typeof, arrays)))
        if key not in splits:
            splits[key] = settled(split, arrays, guesses, fun)
        results: Results = run(splits[key], arrays)
        return results

    return averages


def without_value(fun: Callable[..., Any], value_and_grad: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
    """Makes a loss's `grad` from its `value_and_grad`. With `has_aux`, `grad` also returns the auxiliary output."""

    @functools.wraps(fun, updated=())
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, grads = value_and_grad(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return gradient


def positions(argnums: Iterable[int], args: Sequence[Any]) -> set[int]:
    """The positions of the differentiated arguments, from 0.

    Raises:
      TypeError: there is no such positional argument.
    """
    argnums = (*argnums,)
    if any(not -len(args) <= i < len(args) for i in argnums):
        raise TypeError(
            f"{WHERE}: argnums are {argnums}, but there are {len(args)} positional arguments.\n"
            "  Cure: pass the differentiated arguments by position, and count from 0."
        )
    return {i % len(args) for i in argnums}


def _mean(found: Results, of_aux: Sequence[bool] | None, axis_name: AxisName, plan: active_plan.PlanLike) -> Results:
    """Averages the loss, the gradients, the state's floats, and the floats in auxiliary outputs that `of_aux` marks."""
    leaves: list[Any]
    tree: Any
    leaves, tree = jax.tree.flatten((found.aux, found.state))
    aux = jax.tree.leaves(found.aux)
    marks = [*(of_aux or [False] * len(aux)), *[True] * (len(leaves) - len(aux))]
    means = {i: leaf for i, (leaf, mark) in enumerate(zip(leaves, marks, strict=True)) if mark and is_inexact(leaf)}
    value, grads, means = api.pmean((found.value, found.grads, means), axis_name, plan=plan)
    aux, state = tree.unflatten([means.get(i, leaf) for i, leaf in enumerate(leaves)])
    return Results(value, grads, aux, state)


def _varying(tree: Any, names: tuple[Any, ...]) -> Any:
    """The tree with its floats typed as varying over the axes, so that JAX does not sum their gradients."""
    return jax.tree.map(lambda x: axes.varying(x, names) if is_array(x) and is_inexact(x) else x, tree)


def _are_bound(names: tuple[Any, ...]) -> bool:
    bound = []
    for name in names:
        with contextlib.suppress(NameError):
            lax.axis_size(name)
            bound.append(name)
    if bound and len(bound) < len(names):
        raise JaxcommError(
            f"{WHERE}: of the axes {names} the jax.shard_map or jax.vmap around this call has only {(*bound,)}.\n"
            "  Cure: call it where all of the axes are taken, or none."
        )
    return bool(bound)


def _auxiliary(result: Any) -> Any:
    if not (isinstance(result, tuple) and len(result) == 2):
        raise TypeError(
            f"{WHERE}: has_aux is set, but the function returned no pair: a {type(result).__name__}.\n"
            "  Cure: return the loss and what else there is, as a tuple of two; or leave has_aux out."
        )
    return result[1]
