"""Facts about a step that JAX is tracing or lowering."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar, cast

import jax
from jax._src import config, core, pjit, sharding_impls, source_info_util
from jax._src.interpreters import mlir, partial_eval
from jax._src.sharding_impls import ShardingContext
from jaxlib.mlir import ir

_Data = TypeVar("_Data")


def checks_vma() -> bool:
    """Whether the code runs in a `jax.shard_map` with check_vma.

    With check_vma, the type of a value has the mesh axes along which the value varies.
    """
    checks: bool = config._check_vma.value
    return checks


def is_export(context: mlir.LoweringRuleContext) -> bool:
    """Whether a lowering rule runs for `jax.export`. An exported step runs on devices unknown during the lowering."""
    exported: bool = context.module_context.lowering_parameters.for_export
    return exported


def devices(mesh: Any) -> Sequence[Any]:
    """The devices of the mesh for which a step is lowered, in the order of the mesh's positions.

    Inside a nested `shard_map` JAX lowers with an abstract mesh, which has no devices. The devices are then found in
    the stack frame of the enclosing jit.

    Args:
      mesh: a concrete mesh, or, while a lowering rule runs, an abstract mesh.

    Raises:
      LookupError: the mesh is abstract, and no devices are assigned to it.
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
    """The sharding of an array.

    For an argument of the enclosing `jax.jit`, the result is the argument's sharding in the current call, unless jit's
    `in_shardings` state another sharding. The result is a hint: later calls may pass arrays of other shardings to the
    same trace.

    Returns:
      None if the sharding is unknown, as for a value that is computed inside the jit.
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
    """Makes `rewrite` replace every sharding that a program states from now on, such as an `out_sharding`.

    Args:
      rewrite: returns the replacement of a sharding. Takes the sharding, a PartitionSpec or None, and the place where
        the program states it: "with_sharding_constraint", "jit", "vmap", "auto_axes", "explicit_axes" or
        "out_sharding".
      automatic: returns the axes to which `auto_axes` and `explicit_axes` apply if the program names no axes, or None
        for all axes.
    """
    pjit_: Any = pjit  # the module in which functions are replaced
    create, batch, new_mesh = pjit_._create_sharding_for_array, pjit_._pjit_batcher_for_sharding, pjit_._get_new_mesh
    canonicalize: Callable[..., Any] = sharding_impls.canonicalize_sharding

    def canonical(sharding: Any, *args: Any, **kwargs: Any) -> Any:
        return canonicalize(rewrite(sharding, "out_sharding"), *args, **kwargs)

    def of_mesh(axes: Any, kind: Any, name: str, shardings: Any = None) -> Any:
        stated = jax.tree.map(lambda sharding: rewrite(sharding, name), shardings)
        return new_mesh(automatic() if axes is None else axes, kind, name, stated)

    pjit_._create_sharding_for_array = lambda mesh, sharding, *rest: create(mesh, rewrite(sharding, rest[-1]), *rest)
    pjit_._pjit_batcher_for_sharding = lambda *args: rewrite(batch(*args), "vmap")  # `batch` adds spmd_axis_name
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
    """The line of the user's code that made the operation being lowered: "train.py:57"; "" if unknown."""
    ours = str(Path(__file__).parent.parent)
    frames = source_info_util.user_frames(context.traceback)
    frame = next((frame for frame in frames if not frame.file_name.startswith(ours)), None)
    return f"{Path(frame.file_name).name}:{frame.start_line}" if frame else ""


def module_types(context: mlir.LoweringRuleContext) -> str:
    """The name and the types of the module that is being lowered; the same in all processes."""
    name = context.module_context.module.operation.attributes["sym_name"]
    return f"{name} {_main(context).attributes['function_type']}"


def is_argument(value: Any) -> bool:
    """Whether an operand of the operation being lowered is an argument of the shard_map around the operation.

    A value that the step computes before the shard_map is such an argument, too.
    """
    if not isinstance(value.owner, ir.Block) or value.owner.owner.operation.name != "sdy.manual_computation":
        return False
    outer = value.owner.owner.operands[ir.BlockArgument(value).arg_number].owner
    return isinstance(outer, ir.Block) and outer.owner.operation.name == "func.func"


def step_donates(context: mlir.LoweringRuleContext) -> bool:
    """Whether the step being lowered donates an argument."""

    def find() -> _Donation:
        marks = "jax.buffer_donor", "tf.aliasing_output"
        return _Donation(any(mark in argument for argument in _main(context).arg_attrs for mark in marks))

    return module_data(context, _Donation, find).donates


class _Donation(NamedTuple):
    donates: bool


def _main(context: mlir.LoweringRuleContext) -> Any:
    """The function of the module being lowered that has the step's arguments."""
    functions = context.module_context.module.body.operations
    return next(op for op in functions if str(op.attributes["sym_name"]) == '"main"')


def module_data(context: mlir.LoweringRuleContext, kind: type[_Data], make: Callable[[], _Data]) -> _Data:
    """The object of type `kind` that belongs to the module being lowered. The first call makes the object."""
    kept = context.module_context.keepalives
    found = next((data for data in kept if isinstance(data, kind)), None)
    if found is None:
        found = make()
        kept.append(found)
    return found
