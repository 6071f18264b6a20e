"""Every private JAX name that jaxcomm uses, and nothing else.

Each was read in JAX 0.10.2, 0.11.2 and 0.12.0; `tests/package/test_jax_compat.py` has one test per function, and
`make test-all` runs it with the lowest and the newest JAX.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, cast

import jax
from jax._src import config, core, dispatch, distributed, pjit, sharding_impls, source_info_util
from jax._src.custom_partitioning_sharding_rule import sdy_sharding_rule_to_mlir, str_to_sdy_sharding_rule
from jax._src.interpreters import mlir, partial_eval
from jax._src.lax import parallel
from jax._src.sharding_impls import ShardingContext
from jax.extend.core import JaxprEqn, Primitive, Var
from jaxlib import xla_client

_Data = TypeVar("_Data")

# Not every JAX version has all.
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
    """The primitive of `jax.lax.pcast` from what all ranks have alike to what varies; its transpose is a sum."""
    pvary: Primitive = core.pvary_p
    return pvary


def lowering_of(primitive: Primitive) -> Callable[..., Any]:
    """The lowering rule that JAX uses where no platform has its own."""
    rule: Callable[..., Any] = mlir._lowerings[primitive].rule
    return rule


def require_devices(primitive: Primitive) -> None:
    """Makes a jit that contains `primitive` lower anew for each device assignment, and tell it to `devices`."""
    dispatch.prim_requires_devices_during_lowering.add(primitive)


def drop_unused_outputs(primitive: Primitive, but: str) -> None:
    """Lets JAX remove operand i of `primitive` where result i, the only one that depends on it, is unused.

    With a parameter of the name `but` that is not None, all results depend on all operands.
    """

    def rule(used: list[bool], *rest: Any) -> tuple[list[bool], JaxprEqn | None]:
        eqn: JaxprEqn = rest[-1]  # since 0.12, what else is alive comes before it
        if all(used) or (any(used) and eqn.params.get(but) is not None):
            return [True] * len(used), eqn
        operands = [x for x, keep in zip(eqn.invars, used, strict=True) if keep]
        results = [x for x, keep in zip(eqn.outvars, used, strict=True) if keep]
        return used, eqn.replace(invars=operands, outvars=results) if results else None

    partial_eval.dce_rules[primitive] = rule


def ask_policies_as(primitive: Primitive, lax: Primitive, own: Container[str], but: str) -> None:
    """Lets policies of `jax.checkpoint` decide on `primitive` as on `lax`, operand by operand: they name lax's.

    What a policy would offload stays on the device.

    Args:
      primitive: result i depends on operand i alone.
      lax: takes one operand.
      own: the parameters of `primitive` that `lax` does not have.
      but: with a parameter of this name that is not None, all results depend on all operands, and one that is to be
        computed again has all of them be so.
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


def checks_vma() -> bool:
    """Whether this is traced in a `jax.shard_map` with check_vma, whose types say along which axes a value differs."""
    checks: bool = config._check_vma.value
    return checks


def is_export(context: mlir.LoweringRuleContext) -> bool:
    """Whether a lowering rule runs for `jax.export`: then the devices are not those that the step will run on."""
    exported: bool = context.module_context.lowering_parameters.for_export
    return exported


def devices(mesh: Any) -> Sequence[Any]:
    """The devices of the mesh that is being lowered for, in the order of its positions.

    Inside a nested `shard_map` JAX lowers with an abstract mesh, which has none. The jit around it knows them, and only
    its stack frame does.

    Args:
      mesh: concrete, or abstract while a lowering rule runs.

    Raises:
      LookupError: an abstract mesh that is lowered for no devices.
    """
    if not isinstance(mesh, jax.sharding.AbstractMesh):
        return tuple(mesh.devices.flat)
    for frame in _frames():
        for value in frame.f_locals.values():
            assigned = value.device_assignment if isinstance(value, ShardingContext) else None
            if assigned is not None and len(assigned) == mesh.size:
                return assigned
    raise LookupError(f"no devices are assigned to the mesh {mesh}")


def sharding_of(x: Any) -> Any:
    """The sharding of an array, or that with which the `jax.jit` around this was called for an argument of its.

    Where jit's `in_shardings` name one, it is that. It is a hint: jit's later calls may bring arrays of other shardings
    to what was traced now.

    Returns:
      None for an unknown one, as of a value that is computed inside the jit.
    """
    if not isinstance(x, partial_eval.DynamicJaxprTracer):
        return None if isinstance(x, core.Tracer) else getattr(x, "sharding", None)
    for callee, caller in itertools.pairwise(_frames()):
        if caller.f_code.co_name == "_trace_for_jit" and callee.f_locals.get("trace") is x._trace:
            given, called = caller.f_locals["in_shardings_flat"], cast(FrameType, caller.f_back)
            arguments, variables = called.f_locals["dynargs"], x._trace.frame.invars
            place = next((i for i, variable in enumerate(variables) if variable is x.val), None)
            if place is None or len(arguments) != len(variables):
                return None
            return given[place] if isinstance(given[place], jax.sharding.Sharding) else sharding_of(arguments[place])
    return None


def rewrite_shardings(rewrite: Callable[[Any, str], Any], automatic: Callable[[], tuple[Any, ...] | None]) -> None:
    """Has every sharding that a program states from now on rewritten first, such as an `out_sharding`.

    Args:
      rewrite: takes a sharding, a PartitionSpec or None, and where it is stated: "with_sharding_constraint", "jit",
        "vmap", "auto_axes", "explicit_axes" or "out_sharding"; returns what stands for it.
      automatic: returns the axes that `auto_axes` and `explicit_axes` stand for where they name none; None: all.
    """
    pjit_: Any = pjit  # what is replaced in it
    create, batch, new_mesh = pjit_._create_sharding_for_array, pjit_._pjit_batcher_for_sharding, pjit_._get_new_mesh
    canonicalize: Callable[..., Any] = sharding_impls.canonicalize_sharding

    def canonical(sharding: Any, *args: Any, **kwargs: Any) -> Any:
        return canonicalize(rewrite(sharding, "out_sharding"), *args, **kwargs)

    def of_mesh(axes: Any, kind: Any, name: str, shardings: Any = None) -> Any:
        stated = jax.tree.map(lambda sharding: rewrite(sharding, name), shardings)
        return new_mesh(automatic() if axes is None else axes, kind, name, stated)

    pjit_._create_sharding_for_array = lambda mesh, sharding, *rest: create(mesh, rewrite(sharding, rest[-1]), *rest)
    pjit_._pjit_batcher_for_sharding = lambda *args: rewrite(batch(*args), "vmap")  # with its spmd_axis_name
    pjit_._get_new_mesh = of_mesh
    for name, module in list(sys.modules.items()):
        if name.startswith("jax.") and getattr(module, "canonicalize_sharding", None) is canonicalize:
            module.canonicalize_sharding = canonical  # type: ignore[attr-defined]


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def source_line(context: mlir.LoweringRuleContext) -> str:
    """Where the user's code made the operation that is being lowered: "train.py:57"; "" if nobody knows."""
    ours = str(Path(__file__).parent)
    frames = source_info_util.user_frames(context.traceback)
    frame = next((frame for frame in frames if not frame.file_name.startswith(ours)), None)
    return f"{Path(frame.file_name).name}:{frame.start_line}" if frame else ""


def module_types(context: mlir.LoweringRuleContext) -> str:
    """The name and the types of the module that is being lowered; alike in all processes."""
    module = context.module_context.module
    main = next(op for op in module.body.operations if str(op.attributes["sym_name"]) == '"main"')
    return f"{module.operation.attributes['sym_name']} {main.attributes['function_type']}"


def module_data(context: mlir.LoweringRuleContext, kind: type[_Data], make: Callable[[], _Data]) -> _Data:
    """The one `kind` that belongs to the module that is being lowered; it is made when first asked for."""
    kept = context.module_context.keepalives
    found = next((data for data in kept if isinstance(data, kind)), None)
    if found is None:
        found = make()
        kept.append(found)
    return found


def spans_processes() -> bool:
    """Whether `jax.distributed` has been initialized for several processes."""
    several: bool = distributed.global_state.client is not None and distributed.global_state.num_processes > 1
    return several


def key_value_store() -> Any:
    """The key-value store of the processes of a job, with `key_value_set` and `blocking_key_value_get`.

    Raises:
      LookupError: `jax.distributed` has not been initialized.
    """
    if distributed.global_state.client is None:
        raise LookupError("jax.distributed has not been initialized")
    return distributed.global_state.client


def coordinator_address() -> str:
    """ "host:port" of the coordinator that `jax.distributed` was initialized with.

    Raises:
      LookupError: it has not been initialized.
    """
    if distributed.global_state.coordinator_address is None:
        raise LookupError("jax.distributed has not been initialized")
    return distributed.global_state.coordinator_address


def elementwise_rule(operands: Sequence[Any], results: Sequence[Any], whole: Container[int]) -> Any:
    """A Shardy rule by which result i is sharded like operand i.

    Args:
      operands: MLIR types.
      results: MLIR types of the same ranks.
      whole: the operands whose first dimension, which may then differ from the result's, must not be sharded.
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
    """Lets Python partition the custom calls to `target` in this process's CPU programs.

    Args:
      target: the custom call's name.
      partition: (operand shapes, operand shardings, result shape, result sharding, backend config) -> (StableHLO of one
        partition, operand shardings, result sharding), in XLA's types.
    """
    xla_client.register_custom_call_partitioner(
        target,
        lambda sharding, shape, config: sharding,
        partition,
        lambda operands, shardings, result, config: None,  # asked only without Shardy, which goes by its rule
        can_side_effecting_have_replicated_sharding=True,
    )
