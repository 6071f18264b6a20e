"""Our primitives, one for each collective of lax. They are typed and transformed like lax's primitives, but each takes
many operands and a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from jaxcomm import jax_compat
from jaxcomm.collectives import element_types
from jaxcomm.collectives.request import AllowedDrop
from jaxcomm.collectives.reroute import reroute
from jaxcomm.log import say_once


class CoreCollective(NamedTuple):
    """A collective in the core's terms.

    Attributes:
      name: the public function's name, for error texts.
      kind: "all_reduce" (the result is like the operand), "reduce_scatter" ([n·m, …] to [m, …]) or "all_gather" ([m, …]
        to [n·m, …]), for n ranks.
      reduction: "sum", "max" or "min"; "sum" where nothing is reduced.
      dtypes: the element types that the core supports.
    """

    name: str
    kind: str
    reduction: str
    dtypes: frozenset[str]

    def takes(self, dtype: Any) -> bool:
        """Whether the core supports this element type. Booleans are sent as bytes."""
        return dtype.name in self.dtypes or (dtype == jnp.bool_ and self.kind != "reduce_scatter")


_PSUM = CoreCollective("psum", "all_reduce", "sum", element_types.REAL | element_types.COMPLEX)
_PMAX = CoreCollective("pmax", "all_reduce", "max", element_types.REAL)
_PMIN = CoreCollective("pmin", "all_reduce", "min", element_types.REAL)
_PSUM_SCATTER = CoreCollective("psum_scatter", "reduce_scatter", "sum", element_types.REAL | element_types.COMPLEX)
_ALL_GATHER = CoreCollective("all_gather", "all_gather", "sum", element_types.REAL | element_types.COMPLEX)

# The keys are the names of lax's primitives. For check_vma, lax has several primitives for one function: one for each
# kind of operand and result type.
COLLECTIVES = {
    "psum": _PSUM,
    "psum_invariant": _PSUM,
    "unreduced_psum": _PSUM,
    "pmax": _PMAX,
    "unreduced_pmax": _PMAX,
    "pmin": _PMIN,
    "unreduced_pmin": _PMIN,
    "reduce_scatter": _PSUM_SCATTER,
    "unreduced_reduce_scatter": _PSUM_SCATTER,
    "all_gather": _ALL_GATHER,
    "all_gather_invariant": _ALL_GATHER,
    "all_gather_reduced": _ALL_GATHER,
}

# For each kind, the name of lax's parameter for the dimension whose length changes.
DIMENSION = {"reduce_scatter": "scatter_dimension", "all_gather": "all_gather_dimension"}
OUR_PARAMS = ("plan", "bucket", "drop")


def replace_collectives(
    function: Callable[..., Any], plan: str, bucket: str = "", drop: AllowedDrop | None = None
) -> Callable[..., Any]:
    """Returns `function` with our primitive in place of every collective of lax in it.

    Args:
      function: takes arrays and calls `jax.lax`.
      plan: hash of the plan that the collectives follow, or "" for the default schedules.
      bucket: the step's bucket that the collectives sum, for error texts and statistics; "" without buckets.
      drop: the part that the network may lose.
    """
    ours = {"plan": plan, "bucket": bucket, "drop": drop}
    return reroute(function, {lax: partial(bind_ours, lax, ours) for lax in PRIMITIVES})


def vary_together(function: Callable[..., Any], plan: str) -> Callable[..., Any]:
    """Returns `function` with one cast of all arrays for `jax.lax.pcast`. The sum of the cotangents follows `plan`."""
    bind = partial(VARY.bind, plan=plan, bucket="", drop=None)
    return reroute(function, {jax_compat.lax_pvary(): lambda params, operands: bind(*operands, **params)})


def bind_ours(lax: Primitive, ours: dict[str, Any], params: dict[str, Any], operands: Sequence[Any]) -> Sequence[Any]:
    """Binds our primitive, which takes only named axes and keeps the number of dimensions.

    For positional axes, this function binds lax's primitive. If the call is not tiled, this function adds or removes
    the dimension of the ranks.
    """
    kind = COLLECTIVES[lax.name].kind
    bind = partial(PRIMITIVES[lax].bind, **ours)
    if kind == "all_reduce":
        positional = tuple(axis for axis in params["axes"] if isinstance(axis, int))
        named = tuple(axis for axis in params["axes"] if not isinstance(axis, int))
        if positional:
            operands = [lax.bind(x, **params | {"axes": positional}) for x in operands]
        return bind(*operands, **params | {"axes": named}) if named else operands
    dimension, tiled = params[DIMENSION[kind]], params["tiled"]
    if kind == "all_gather" and not tiled:
        operands = [jnp.expand_dims(x, dimension) for x in operands]
    results = bind(*operands, **params | {"tiled": True})
    return [jnp.squeeze(x, dimension) for x in results] if kind == "reduce_scatter" and not tiled else results


def bind_in_core_form(lax: Primitive, operands: Sequence[Any], params: dict[str, Any], where: str) -> Sequence[Any]:
    """Binds the compiled form of our primitive, in which booleans are bytes and only the first dimension changes.

    Binds lax's primitive for operands of types that the core does not support.

    Args:
      lax: lax's primitive.
      operands, params: the operands and parameters of our primitive.
      where: the line of the user's code that made the call.
    """
    collective = COLLECTIVES[lax.name]
    name = DIMENSION.get(collective.kind)
    dimension = 0 if name is None else params[name]
    results = list(operands)
    core = [i for i, x in enumerate(operands) if collective.takes(x.dtype)]
    for i in sorted({*range(len(operands))} - {*core}):
        say_once(
            f"jaxcomm's core has no {collective.name} of {operands[i].dtype}: it runs as jax.lax's, without a plan."
        )
        results[i] = lax.bind(operands[i], **{key: value for key, value in params.items() if key not in OUR_PARAMS})
    if core:
        moved = [jnp.moveaxis(operands[i], dimension, 0) if dimension else operands[i] for i in core]
        moved = [x.astype(jnp.uint8) if x.dtype == jnp.bool_ else x for x in moved]
        first = {} if name is None else {name: 0}
        for i, result in zip(core, CORE[lax].bind(*moved, **params | first, where=where), strict=True):
            results[i] = (jnp.moveaxis(result, 0, dimension) if dimension else result).astype(operands[i].dtype)
    return results


def _primitive(lax: Primitive) -> Primitive:
    """Our primitive for `lax`. Its rules apply lax's rule to each operand, with lax's collectives replaced by ours."""
    ours = Primitive(f"jaxcomm_{lax.name}")
    ours.multiple_results = True

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        if lax not in ad.primitive_jvps:
            raise NotImplementedError(
                f"Differentiation rule for 'jaxcomm.{COLLECTIVES[lax.name].name}' not implemented, as in jax.lax."
            )
        results = ours.bind(*primals, **params)
        moving = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]
        changes = [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
        for i, change in zip(moving, ours.bind(*[tangents[i] for i in moving], **params), strict=True):
            changes[i] = change
        return results, changes

    def transpose(
        cotangents: Sequence[Any], *operands: Any, plan: str, bucket: str, drop: Any, **params: Any
    ) -> Sequence[Any]:
        del drop  # sums with a drop are not differentiated
        rule = ad.primitive_transposes[lax]
        linear = [ad.is_undefined_primal(operand) for operand in operands]
        moving = [i for i, cotangent in enumerate(cotangents) if linear[i] and not isinstance(cotangent, ad.Zero)]

        def transposes(*cotangents: Any) -> list[Any]:
            return [rule(ct, operands[i], **params)[0] for i, ct in zip(moving, cotangents, strict=True)]

        results = [ad.Zero(x.aval) if is_linear else None for x, is_linear in zip(operands, linear, strict=True)]
        moved = replace_collectives(transposes, plan, bucket)(*[cotangents[i] for i in moving])
        for i, result in zip(moving, moved, strict=True):
            results[i] = result
        return results

    def batch(
        axis: Any, operands: Sequence[Any], dims: Sequence[Any], *, plan: str, bucket: str, drop: Any, **params: Any
    ) -> Any:
        if drop is not None:
            raise NotImplementedError(
                'jaxcomm: a drop of the policy "network" or "deadline" cannot run under jax.vmap.\n'
                "  Cure: use another policy there."
            )
        plain: Any = batching.primitive_batchers  # untyped in JAX
        rule = batching.fancy_primitive_batchers.get(lax) or partial(_batch_each, plain[lax])

        def batches(*operands: Any) -> list[Any]:
            return [rule(axis, (x,), (dim,), **params) for x, dim in zip(operands, dims, strict=True)]

        return zip(*replace_collectives(batches, plan, bucket)(*operands), strict=True)

    ours.def_effectful_abstract_eval(partial(_abstract_eval, lax))
    ad.primitive_jvps[ours] = jvp
    ad.primitive_transposes[ours] = transpose
    batching.fancy_primitive_batchers[ours] = batch
    jax_compat.drop_unused_outputs(ours, but="drop")
    jax_compat.ask_policies_as(ours, lax, OUR_PARAMS, but="drop")
    return ours


def _batch_each(rule: Callable[..., Any], axis: Any, operands: Any, dims: Any, **params: Any) -> Any:
    """Calls a batching rule that takes no axis."""
    del axis
    return rule(operands, dims, **params)


def _core_primitive(lax: Primitive) -> Primitive:
    core = Primitive(f"jaxcomm_core_{lax.name}")
    core.multiple_results = True
    core.def_effectful_abstract_eval(lambda *avals, where, **params: _abstract_eval(lax, *avals, **params))
    return core


def _abstract_eval(
    lax: Primitive, *avals: Any, plan: str, bucket: str, drop: Any, **params: Any
) -> tuple[list[Any], set[Any]]:
    del plan, bucket, drop
    results, effects = zip(*[lax.abstract_eval(aval, **params) for aval in avals], strict=True)
    return list(results), set().union(*effects)


PRIMITIVES = {lax: _primitive(lax) for lax in jax_compat.lax_collectives()}  # lax's primitive → our traced primitive
VARY = _primitive(jax_compat.lax_pvary())  # casts many operands; one call sums their cotangents
CORE = {lax: _core_primitive(lax) for lax in PRIMITIVES}  # lax's primitive → our compiled primitive
