"""Gradients of Flax nnx models: `flax.nnx.value_and_grad` and `flax.nnx.grad`, averaged by one `pmean`.

    loss, grads = jaxcomm.nnx.value_and_grad(loss_of, "data")(model, x, y)  # inside nnx.jit, or not

Needs the package flax.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import jax
from jax import lax

from jaxcomm.collectives import axes
from jaxcomm.collectives.active_plan import PlanLike
from jaxcomm.collectives.axes import AxisName
from jaxcomm.collectives.jit.averaged import Results, averaged, positions, without_value
from jaxcomm.errors import load_extra

__all__ = ["grad", "value_and_grad"]


def value_and_grad(
    f: Callable[..., Any],
    axis_name: AxisName,
    *,
    argnums: Any = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
    in_specs: Any = None,
    aux_specs: Any = None,
    mesh: Any = None,
    plan: PlanLike = None,
) -> Callable[..., Any]:
    """`flax.nnx.value_and_grad`, computed by each rank on its part of the batch and averaged by `pmean`.

    All ranks share positional arguments that are modules, Variables, `nnx.Rngs` or other objects of nnx. Each rank
    folds its index into the keys of these objects' random streams, so dropout has a mask of its own on each rank.
    Changes that the loss makes in these objects reach the caller. Floats, such as the statistics of BatchNorm, become
    means over the ranks. All other values, such as the counts of random streams, must change equally on all ranks.

    Args:
      f, argnums, has_aux, holomorphic, allow_int, graph, graph_updates: as for `flax.nnx.value_and_grad`; `argnums` may
        hold `nnx.DiffState`.
      axis_name, in_specs, aux_specs, mesh, plan: as for `jaxcomm.value_and_grad`.

    Returns:
      A function with the arguments of `f` and the results of `flax.nnx.value_and_grad(f)`.

    Raises:
      JaxcommError: Flax is not installed; for other reasons see `jaxcomm.value_and_grad`.
      NameError, TypeError, ValueError: see `jaxcomm.value_and_grad`.
    """
    nnx = load_extra("flax.nnx", "jaxcomm.nnx")
    objects = (nnx.Pytree, nnx.Variable)
    options = {"has_aux": has_aux, "holomorphic": holomorphic, "allow_int": allow_int}
    differentiated = nnx.value_and_grad(f, argnums=argnums, graph=graph, graph_updates=graph_updates, **options)
    several = (argnums,) if isinstance(argnums, int | nnx.DiffState) else argnums
    places = [each.argnum if isinstance(each, nnx.DiffState) else each for each in several]

    def objects_of(tree: Any) -> list[Any]:
        leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, objects))
        return [leaf for leaf in leaves if isinstance(leaf, objects)]

    def loss(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = nnx.from_tree((args, kwargs))
        return f(*args, **kwargs)

    def differentiate(*args: Any, **kwargs: Any) -> Results:
        before = {*map(id, jax.tree.leaves((args, kwargs)))}
        args, kwargs = nnx.from_tree((args, kwargs))
        mine = objects_of((args, kwargs))
        with _own_keys(nnx, mine, axis_name):
            value, grads = differentiated(*args, **kwargs)
        value, aux = value if has_aux else (value, None)
        changed = nnx.state(mine, lambda _, variable: any(id(x) not in before for x in jax.tree.leaves(variable)))
        return Results(value, grads, aux, changed)

    specs = {"in_specs": in_specs, "aux_specs": aux_specs, "mesh": mesh, "plan": plan}
    averages = averaged(loss, differentiate, axis_name, has_aux=has_aux, **specs)

    @wraps(f, updated=())
    def both(*args: Any, **kwargs: Any) -> Any:
        shared = positions(places, args) | {i for i, arg in enumerate(args) if isinstance(arg, objects)}
        found = averages(shared, *nnx.to_tree((args, kwargs)))
        nnx.update(objects_of((args, kwargs)), found.state)
        return (found.value, found.aux) if has_aux else found.value, found.grads

    return both


def grad(f: Callable[..., Any], axis_name: AxisName, *, has_aux: bool = False, **options: Any) -> Callable[..., Any]:
    """Like `value_and_grad` above, with the same arguments and errors, but for `flax.nnx.grad`."""
    both = value_and_grad(f, axis_name, has_aux=has_aux, **options)
    return without_value(f, both, has_aux)


@contextmanager
def _own_keys(nnx: Any, objects: Sequence[Any], axis_name: AxisName) -> Iterator[None]:
    """Makes the keys of the random streams differ between the ranks, inside the `with` statement."""
    keys = jax.tree.map(lambda key: key, nnx.state(objects, nnx.RngKey))  # a copy of the Variables
    rank = lax.axis_index(axes.names(axis_name))

    def own(key: Any) -> Any:
        fold = jax.random.fold_in
        for _ in range(key.ndim):  # streams that were split have arrays of keys
            fold = jax.vmap(fold, (0, None))
        return fold(key, rank)

    nnx.update(objects, jax.tree.map(own, keys))
    yield
    nnx.update(objects, keys)
