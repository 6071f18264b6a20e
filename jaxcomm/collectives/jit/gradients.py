"""`jaxcomm.value_and_grad` and `jaxcomm.grad`, for losses of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, Literal, ParamSpec, SupportsIndex, TypedDict, TypeVar, Unpack, overload

import jax
import jax.numpy as jnp

from jaxcomm.collectives import active_plan
from jaxcomm.collectives.axes import AxisName
from jaxcomm.collectives.jit.averaged import Results, averaged, positions, without_value
from jaxcomm.collectives.jit.split import WHERE, is_array, is_inexact, like_parameters

_Params = TypeVar("_Params")
_Value = TypeVar("_Value")
_Aux = TypeVar("_Aux")
_Args = ParamSpec("_Args")
_Mesh = jax.sharding.Mesh | jax.sharding.AbstractMesh | None


class GradOptions(TypedDict, total=False):
    """The arguments of `value_and_grad` and `grad` that do not change the result's type."""

    holomorphic: bool
    allow_int: bool
    in_specs: Any
    aux_specs: Any
    mesh: _Mesh
    plan: active_plan.PlanLike


@overload
def value_and_grad(
    fun: Callable[Concatenate[_Params, _Args], _Value],
    axis_name: AxisName,
    *,
    has_aux: bool = False,
    **options: Unpack[GradOptions],
) -> Callable[Concatenate[_Params, _Args], tuple[_Value, _Params]]: ...


@overload
def value_and_grad(
    fun: Callable[_Args, _Value],
    axis_name: AxisName,
    argnums: int | Sequence[int],
    has_aux: bool = False,
    **options: Unpack[GradOptions],
) -> Callable[_Args, tuple[_Value, Any]]: ...


def value_and_grad(
    fun: Callable[..., Any],
    axis_name: AxisName,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    in_specs: Any = None,
    aux_specs: Any = None,
    mesh: _Mesh = None,
    plan: active_plan.PlanLike = None,
) -> Callable[..., Any]:
    """`jax.value_and_grad`, computed by each rank of `axis_name` on its part of the batch and averaged by `pmean`.

        loss, grads = jaxcomm.value_and_grad(loss_of, "data")(params, batch)  # inside jax.jit, or not

    `fun` gets one rank's part, as in a `jax.shard_map` over the axis with check_vma=False, and should be a mean over
    examples. In three cases the results differ from the results of `jax.jit` alone unless `fun` has a line like these:

        key = jax.random.fold_in(key, jax.lax.axis_index("data"))  # dropout: its own mask for each rank
        loss = total / jaxcomm.pmean(weights.sum(), "data")  # masked examples: divided by the whole batch's weights
        x = nn.BatchNorm(axis_name="data")(x)  # statistics of the whole batch

    Shardings in `fun` may name the axes, but these names are ignored. All ranks get the same bits. Even outside a jit,
    the returned function is compiled as by `jax.jit`: values that `fun` closes over are read once, and arguments other
    than arrays are static.

    Inside a `jax.shard_map` over the axes, the arguments already are one rank's part. The loss and the gradients are
    averaged there, but auxiliary outputs are not; `in_specs`, `aux_specs` and `mesh` have no effect.

    Args:
      fun: the loss, as for `jax.value_and_grad`. The batch must be among the loss's arguments. Arrays that the loss
        closes over are the same on all ranks, and are not allowed where axes are explicit.
      axis_name: axis of the mesh, or several.
      argnums, has_aux, holomorphic, allow_int: as for `jax.value_and_grad`.
      in_specs: how each positional argument is split, as for `jax.shard_map`: P("data") for the batch, P() for an
        argument that all ranks use whole. None: differentiated arguments are the same on all ranks, and other arrays
        keep their shardings, even if they come through an enclosing jit. On explicit axes, the arrays' types state the
        shardings. Arrays of unknown sharding are split on their first dimensions, which must all have the same size.
      aux_specs: the axes over which each auxiliary output is split. P() averages the output over the ranks, or, if the
        output has no mean, states that it is the same on all ranks. None: outputs that grow with the batch are
        concatenated, and other outputs are averaged.
      mesh: the mesh; None: the mesh of `jax.set_mesh`, or the arguments' mesh if no mesh is set.
      plan: as for `jaxcomm.psum`.

    Returns:
      A function with the arguments of `fun` and the results of `jax.value_and_grad(fun)`.

    Raises:
      JaxcommError: no mesh, or an enclosing `jax.shard_map` has only some of the axes. This error and the errors below
        are raised when the returned function is called.
      NameError: the mesh has no such axis.
      ValueError: no argument is split, the number of ranks does not divide a split dimension, the specs do not fit, or
        nothing shows whether an argument belongs to the batch.
      TypeError: a parameter is missing or not an array of floats, a static argument has no hash, `fun` returns no pair
        although has_aux is set, or an auxiliary output has no mean.

    Example:
      >>> def loss(w, x):
      ...     return jnp.mean((w - x) ** 2)
      >>> jaxcomm.value_and_grad(loss, "data", mesh=mesh)(jnp.zeros(()), jnp.arange(8.0))
      (Array(17.5, dtype=float32), Array(-7., dtype=float32))
    """
    differentiated = jax.value_and_grad(fun, argnums, has_aux, holomorphic, allow_int)
    params = (argnums,) if isinstance(argnums, SupportsIndex) else tuple(argnums)

    def differentiate(*args: Any, **kwargs: Any) -> Results:
        value, grads = differentiated(*args, **kwargs)
        value, aux = value if has_aux else (value, None)
        return Results(value, [leaf for leaf in jax.tree.leaves(grads) if leaf.dtype != jax.dtypes.float0], aux)

    specs = {"in_specs": in_specs, "aux_specs": aux_specs, "mesh": mesh, "plan": plan}
    averages = averaged(fun, differentiate, axis_name, has_aux=has_aux, **specs)

    @wraps(fun, updated=())
    def both(*args: Any, **kwargs: Any) -> Any:
        shared = positions(params, args)
        checked = [
            jax.tree.map_with_path(partial(_parameter, i, arg, allow_int), arg) if i in shared else arg
            for i, arg in enumerate(args)
        ]
        found = averages(shared, checked, kwargs)
        of = args[argnums] if isinstance(argnums, SupportsIndex) else tuple(args[i] for i in params)
        return (found.value, found.aux) if has_aux else found.value, like_parameters(of, iter(found.grads))

    return both


@overload
def grad(
    fun: Callable[Concatenate[_Params, _Args], Any],
    axis_name: AxisName,
    *,
    has_aux: Literal[False] = False,
    **options: Unpack[GradOptions],
) -> Callable[Concatenate[_Params, _Args], _Params]: ...


@overload
def grad(
    fun: Callable[Concatenate[_Params, _Args], tuple[Any, _Aux]],
    axis_name: AxisName,
    *,
    has_aux: Literal[True],
    **options: Unpack[GradOptions],
) -> Callable[Concatenate[_Params, _Args], tuple[_Params, _Aux]]: ...


@overload
def grad(
    fun: Callable[_Args, Any],
    axis_name: AxisName,
    argnums: int | Sequence[int],
    has_aux: bool = False,
    **options: Unpack[GradOptions],
) -> Callable[_Args, Any]: ...


def grad(
    fun: Callable[..., Any],
    axis_name: AxisName,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    in_specs: Any = None,
    aux_specs: Any = None,
    mesh: _Mesh = None,
    plan: active_plan.PlanLike = None,
) -> Callable[..., Any]:
    """`jax.grad`, computed and averaged like `value_and_grad` above, with the same arguments and errors.

    Example:
      >>> jaxcomm.grad(lambda w, x: jnp.mean(w * x), "data", mesh=mesh)(jnp.ones(()), jnp.arange(8.0))
      Array(3.5, dtype=float32)
    """
    options = GradOptions(
        holomorphic=holomorphic, allow_int=allow_int, in_specs=in_specs, aux_specs=aux_specs, mesh=mesh, plan=plan
    )
    both = value_and_grad(fun, axis_name, argnums, has_aux, **options)
    return without_value(fun, both, has_aux)


def _parameter(place: int, argument: Any, allow_int: bool, path: Any, leaf: Any) -> Any:
    name = f"argument {place}{jax.tree_util.keystr(path)}"
    if not (is_array(leaf) or isinstance(leaf, int | float | complex)):
        raise TypeError(
            f"{WHERE}: {name} is of type {type(leaf).__name__}; only arrays have a gradient.\n  Cure: "
            + _cure(argument, "differentiate the model's arrays and pass the rest in another argument.")
        )
    if not (allow_int or is_inexact(leaf)):
        raise TypeError(
            f"{WHERE}: {name} is {jax.typeof(leaf).dtype.name}, which has no gradient.\n  Cure: "
            + _cure(argument, "pass it in an argument that is not differentiated, or set allow_int=True.")
        )
    return leaf if is_array(leaf) else jnp.asarray(leaf)


def _cure(argument: Any, other: str) -> str:
    """Returns a cure that names our function for the argument's model library, or `other` if no function fits."""
    for kind in type(argument).__mro__:
        for library, ours in {"flax.nnx": "nnx", "equinox": "equinox"}.items():
            if f"{kind.__module__}.".startswith(f"{library}."):
                return f"call jaxcomm.{ours}.value_and_grad or jaxcomm.{ours}.grad, which differentiate this model."
    return other
