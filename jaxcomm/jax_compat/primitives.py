"""The primitives of lax's collectives, and JAX's rules for jaxcomm's primitives."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Sequence
from typing import Any

import jax
from jax._src import core, dispatch, sharding_impls, xla_bridge
from jax._src.custom_partitioning_sharding_rule import sdy_sharding_rule_to_mlir, str_to_sdy_sharding_rule
from jax._src.interpreters import mlir, partial_eval
from jax._src.lax import parallel
from jax.extend.core import JaxprEqn, Primitive, Var
from jaxlib import xla_client

# A JAX version may lack some of these primitives.
_COLLECTIVES = (
    "psum_p",
    "pmax_p",
    "pmin_p",
    "psum_invariant_p",
    "unreduced_psum_p",
    "unreduced_pmax_p",
    "unreduced_pmin_p",
    "reduce_scatter_p",
    "unreduced_reduce_scatter_p",
    "all_gather_p",
    "all_gather_invariant_p",
    "all_gather_reduced_p",
)


def lax_collectives() -> list[Primitive]:
    """The primitives behind lax's reductions and gathers."""
    return [getattr(parallel, name) for name in _COLLECTIVES if hasattr(parallel, name)]


def lax_pvary() -> Primitive:
    """The primitive that `jax.lax.pcast` binds to make an unvarying value vary. The primitive's transpose is a sum."""
    pvary: Primitive = core.pvary_p
    return pvary


def lowering_of(primitive: Primitive) -> Callable[..., Any]:
    """The lowering rule that JAX uses on platforms without a rule of their own."""
    rule: Callable[..., Any] = mlir._lowerings[primitive].rule
    return rule


def require_devices(primitive: Primitive) -> None:
    """Makes JAX lower a jit with `primitive` anew for each device assignment, so `devices` can find the assignment."""
    dispatch.prim_requires_devices_during_lowering.add(primitive)


def drop_unused_outputs(primitive: Primitive, but: str) -> None:
    """Lets JAX remove operand i of `primitive` if result i is unused, because no other result depends on operand i.

    If the parameter named `but` is not None, all results depend on all operands. JAX then removes operands only if all
    results are unused.
    """

    def rule(used: list[bool], *rest: Any) -> tuple[list[bool], JaxprEqn | None]:
        eqn: JaxprEqn = rest[-1]  # since 0.12, another argument precedes the equation
        if all(used) or (any(used) and eqn.params.get(but) is not None):
            return [True] * len(used), eqn
        operands = [x for x, keep in zip(eqn.invars, used, strict=True) if keep]
        results = [x for x, keep in zip(eqn.outvars, used, strict=True) if keep]
        return used, eqn.replace(invars=operands, outvars=results) if results else None

    partial_eval.dce_rules[primitive] = rule


def ask_policies_as(primitive: Primitive, lax: Primitive, own: Container[str], but: str) -> None:
    """Lets policies of `jax.checkpoint` treat each operand of `primitive` like an operand of `lax`.

    The policies know only lax's primitives by name. Values that a policy would offload stay on the device.

    Args:
      primitive: our primitive, whose result i depends on operand i alone.
      lax: lax's primitive, which takes one operand.
      own: the parameters of `primitive` that `lax` does not have.
      but: if the parameter of this name is not None, all results depend on all operands, and recomputing one result
        recomputes all results.
    """

    def rule(policy: Callable[..., Any], unknown: Sequence[bool], there: Sequence[bool], eqn: JaxprEqn) -> Any:
        if any(unknown):
            again, known = [True] * len(unknown), None
        else:
            params = {name: value for name, value in eqn.params.items() if name not in own}
            cases = [policy(lax, operand.aval, **params) for operand in eqn.invars]
            again, known = [case is False or isinstance(case, partial_eval.RecomputeType) for case in cases], eqn
            if eqn.params.get(but) is not None:
                again = [any(again)] * len(again)
        needed = [operand for operand, anew in zip(eqn.invars, again, strict=True) if anew]
        results = [result for result, anew in zip(eqn.outvars, again, strict=True) if anew]
        missing = [
            operand
            for operand, anew, here in zip(eqn.invars, again, there, strict=True)
            if anew and not here and isinstance(operand, Var)
        ]
        later = eqn.replace(invars=needed, outvars=results) if needed else None
        return known, later, [known is None] * len(again), again, missing

    partial_eval.partial_eval_jaxpr_custom_rules[primitive] = rule


def elementwise_rule(operands: Sequence[Any], results: Sequence[Any], whole: Container[int]) -> Any:
    """A Shardy rule that gives result i the sharding of operand i.

    Args:
      operands: the operands' MLIR types.
      results: the results' MLIR types, each with its operand's number of dimensions.
      whole: the operands whose first dimension must not be sharded. The result's first dimension may have another size.
    """
    left, right, unsharded = [], [], []
    for i, operand in enumerate(operands):
        dims = [f"x{i}d{j}" for j in range(len(operand.shape))]
        left.append(" ".join(dims))
        right.append(" ".join([f"y{i}", *dims[1:]] if i in whole else dims))
        unsharded += [dims[0], f"y{i}"] if i in whole else []
    rule = str_to_sdy_sharding_rule(
        f"{', '.join(left)} -> {', '.join(right)}", need_replication_factors=tuple(unsharded)
    )
    return sdy_sharding_rule_to_mlir(rule, list(operands), list(results))


def register_partitioner(target: str, partition: Callable[..., Any]) -> None:
    """Lets Python partition the custom calls to `target` in the programs of this process.

    Args:
      target: the custom call's name.
      partition: (operand shapes, operand shardings, result shape, result sharding, backend config) -> (StableHLO of one
        partition, operand shardings, result sharding), in XLA's types.
    """
    register: Any = functools.partial(
        xla_client.register_custom_call_partitioner,
        name=target,
        prop_user_sharding=lambda sharding, shape, config: sharding,
        partition=partition,
        # called only without Shardy; Shardy uses the call's sharding rule
        infer_sharding_from_operands=lambda operands, shardings, result, config: None,
        can_side_effecting_have_replicated_sharding=True,
    )
    register()
    xla_bridge.register_plugin_callbacks(register)  # plugins of other platforms keep their own partitioners


def shard_module(function: Callable[..., Any], avals: Sequence[Any], mesh: Any, platforms: Sequence[str]) -> bytes:
    """MLIR of a function that runs on one shard, for `register_partitioner`. All axes are manual in the function.

    Args:
      function: takes arrays and returns a list of arrays; may name the mesh's axes.
      avals: shapes and types of a shard's operands.
      mesh: the mesh of the whole step.
      platforms: the platforms to lower for.
    """
    axes = list(mesh.shape.items())
    jaxpr = jax.make_jaxpr(function, axis_env=axes)(*avals)
    with core.extend_axis_env_nd(axes):
        module: Any = mlir.build_mlir_module_helper(
            jaxpr,
            name="shard",
            platforms=tuple(platforms),
            backend=None,
            axis_context=sharding_impls.SPMDAxisContext(mesh, frozenset(mesh.axis_names)),
        )
    text: bytes = mlir.module_to_bytecode(module)
    return text
