"""Collectives in steps that XLA still partitions over the axes that `shard_map` left automatic.

XLA would gather the operands of a custom call that it cannot partition. These collectives are therefore custom calls
with our own partitioner, which keeps each operand's sharding and gives XLA the call for one shard.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.interpreters import mlir

from jaxcomm import ffi, jax_compat
from jaxcomm.collectives.custom_call import attributes, is_in_place, unsharded
from jaxcomm.collectives.request import Operand, Request

_TARGET = "jaxcomm_partitioned"
_TYPES = {
    **{f"int{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"ui{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"f{bits}" for bits in (16, 32, 64)},
    "bfloat16": "bf16",
    "complex64": "complex<f32>",
    "complex128": "complex<f64>",
}


# A function that makes the MLIR module for a shard with these operands.
ShardModule = Callable[[Sequence[Operand]], bytes]
_modules: dict[str, ShardModule] = {}  # the modules of calls that no request describes, by name


def partitioned_call(context: mlir.LoweringRuleContext, operands: Sequence[Any], request: Request) -> Sequence[Any]:
    """The custom call that `_partition` replaces. Its sharding rule makes Shardy keep the operands' shardings."""
    return _call(context, operands, request.to_json(), unsharded(request, len(operands)))


def partitioned_module(
    context: mlir.LoweringRuleContext, operands: Sequence[Any], name: str, module: ShardModule, whole: range
) -> Sequence[Any]:
    """Like `partitioned_call`, for a call that no request describes. XLA gets the shard's module from `module`.

    Args:
      context, operands: the call's lowering context and operands.
      name: the module's name; calls with the same name share the module.
      module: makes the module of a shard when XLA asks for it.
      whole: the operands whose first dimension must not be sharded.
    """
    _modules[name] = module
    return _call(context, operands, name, whole)


def _call(context: mlir.LoweringRuleContext, operands: Sequence[Any], config: str, whole: range) -> Sequence[Any]:
    _register()
    results: Sequence[Any] = jax.ffi.ffi_lowering(_TARGET, api_version=2, backend_config=config)(context, *operands)
    results[0].owner.attributes["sdy.sharding_rule"] = jax_compat.elementwise_rule(
        [operand.type for operand in operands], [result.type for result in results], whole
    )
    return results


@functools.cache
def _register() -> None:
    jax_compat.register_partitioner(_TARGET, _partition)


def _partition(
    operands: Sequence[Any], shardings: Sequence[Any], result: Any, result_sharding: Any, config: bytes
) -> tuple[bytes, Sequence[Any], Any]:
    """Tells XLA the module that runs on one shard, and the shardings of the operands and the results."""
    del shardings  # the sharding rule makes them equal to the results' shardings; XLA reshards operands that differ
    results = result.tuple_shapes() if result.is_tuple() else [result]
    wanted = result_sharding.tuple_elements() if result.is_tuple() else [result_sharding]
    shards = _shards(operands, wanted)
    if (module := _modules.get(config.decode())) is not None:
        return module(shards), wanted, result_sharding
    return _module(Request.from_json(config), shards, _shards(results, wanted)).encode(), wanted, result_sharding


def _shards(shapes: Sequence[Any], shardings: Sequence[Any]) -> list[Operand]:
    tiles = [sharding.tile(shape) for shape, sharding in zip(shapes, shardings, strict=True)]
    return [(tuple(tile.dimensions()), tile.numpy_dtype()) for tile in tiles]


def _module(request: Request, operands: Sequence[Operand], results: Sequence[Operand]) -> str:
    """StableHLO of the core's custom call."""
    config = ", ".join(
        f"{name} = {json.dumps(text, ensure_ascii=False)}" for name, text in attributes(request, operands).items()
    )
    names = [f"%x{i}" for i in range(len(operands))]
    types = [_type(operand) for operand in operands]
    result_types = ", ".join(_type(result) for result in results)
    aliases = ", ".join(
        f"#stablehlo.output_operand_alias<output_tuple_indices = [{i if len(results) > 1 else ''}], "
        f"operand_index = {i}, operand_tuple_indices = []>"
        for i in range(len(operands) if is_in_place(request) else 0)
    )
    return f"""
module {{
  func.func public @main({", ".join(map("{}: {}".format, names, types))}) -> ({result_types}) {{
    %y:{len(results)} = stablehlo.custom_call @{ffi.TARGET}({", ".join(names)}) {{
      api_version = 4 : i32, backend_config = {{{config}}}, output_operand_aliases = [{aliases}],
      operand_layouts = [{", ".join(map(_layout, operands))}], result_layouts = [{", ".join(map(_layout, results))}]
    }} : ({", ".join(types)}) -> ({result_types})
    return {", ".join(f"%y#{i}" for i in range(len(results)))} : {result_types}
  }}
}}
"""


def _type(operand: Operand) -> str:
    shape, dtype = operand
    return f"tensor<{''.join(f'{size}x' for size in shape)}{_TYPES[dtype.name]}>"


def _layout(operand: Operand) -> str:
    rank = len(operand[0])
    return f"dense<{list(range(rank - 1, -1, -1)) if rank else ''}> : tensor<{rank}xindex>"  # row-major
