"""Every private JAX name that jaxcomm uses, and nothing else.

Each was read in, and is tested on, JAX 0.10.2, 0.11.2 and 0.12.0; `tests/package/test_jax_compat.py` has one test per
function.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import jax
from jax._src import config, core, dispatch, distributed, source_info_util, xla_bridge
from jax._src.custom_partitioning_sharding_rule import sdy_sharding_rule_to_mlir, str_to_sdy_sharding_rule
from jax._src.interpreters import mlir, partial_eval, pxla
from jax._src.lax import parallel
from jax._src.sharding_impls import ShardingContext
from jax.extend.core import JaxprEqn, Primitive, Var
from jaxlib import _hlo, xla_client  # type: ignore[attr-defined]

_Data = TypeVar("_Data")
_first_executions = threading.local()

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
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        for value in frame.f_locals.values():
            assigned = value.device_assignment if isinstance(value, ShardingContext) else None
            if assigned is not None and len(assigned) == mesh.size:
                return assigned
        frame = frame.f_back
    raise LookupError(f"no devices are assigned to the mesh {mesh}")


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


def before_first_execution(function: Callable[[Any, Sequence[Any]], None]) -> None:
    """Calls `function` before a program of several devices runs for the first time.

    Args:
      function: (XLA's loaded executable, its devices in the order of their assignment) -> None.
    """
    build, call = pxla.UnloadedMeshExecutable.build_unsafe_call, pxla.ExecuteReplicated.__call__
    new: weakref.WeakKeyDictionary[Any, Sequence[Any]] = weakref.WeakKeyDictionary()

    def build_and_remember(self: Any) -> Any:
        run = build(self)
        if self.device_list is not None and len(self.device_list) > 1:
            new[run] = tuple(self.device_list)
        return run

    def call_after(self: Any, *args: Any) -> Any:
        if new and not getattr(_first_executions, "are_unseen", False) and (devices := new.pop(self, None)):
            function(self.xla_executable, devices)
        return call(self, *args)

    pxla.UnloadedMeshExecutable.build_unsafe_call = build_and_remember  # type: ignore[method-assign]
    pxla.ExecuteReplicated.__call__ = call_after  # type: ignore[method-assign]


@contextlib.contextmanager
def without_first_execution() -> Iterator[None]:
    """Programs that this thread runs here are not those of `before_first_execution`."""
    _first_executions.are_unseen = True
    try:
        yield
    finally:
        _first_executions.are_unseen = False


def program_text(executable: Any) -> str:
    """XLA's text of a loaded executable's program (HLO), without large constants and metadata."""
    options: Any = getattr(_hlo, "HloPrintOptions")()  # noqa: B009
    options.print_large_constants = False
    options.print_metadata = False
    text: str = executable.hlo_modules()[0].to_string(options)
    return text


def cpu_devices() -> int:
    """The CPU devices that this process will have, as JAX's option or XLA's flag says."""
    asked: int = xla_bridge.num_cpu_devices.value
    flag = re.search(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return asked if asked > 0 else int(flag[1]) if flag else 1


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
