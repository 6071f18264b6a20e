"""The devices of a call's ranks, as a mesh places them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jaxcomm import jax_compat
from jaxcomm.collectives.primitive import COLLECTIVES
from jaxcomm.collectives.request import Device, Groups


def ranks_of(
    lax: Primitive, context: mlir.LoweringRuleContext, bucket: str, params: Mapping[str, Any]
) -> tuple[str, str, list[list[int]]]:
    """The call's name, its axes' names, and the positions in the mesh of each group's ranks."""
    collective = COLLECTIVES[lax.name]
    given = params["axes"] if collective.kind == "all_reduce" else params["axis_name"]
    over = given if isinstance(given, tuple) else (given,)
    name, axes = f"{collective.name} {bucket}" if bucket else collective.name, ",".join(map(str, over))
    scope: Any = context.module_context.axis_context
    return name, axes, positions_of(scope.mesh, over, params.get("axis_index_groups"), f"{name} over '{axes}'")


def positions_of(
    mesh: Any, axes: tuple[Any, ...], index_groups: tuple[tuple[int, ...], ...] | None, where: str
) -> list[list[int]]:
    """The positions in the mesh of each group's ranks, which are numbered along `axes` in row-major order."""
    names = list(mesh.shape)
    positions = np.arange(mesh.size).reshape(tuple(mesh.shape.values()))
    over = [names.index(axis) for axis in axes]
    rest = [i for i in range(len(names)) if i not in over]
    table = positions.transpose(rest + over).reshape(-1, math.prod(mesh.shape[axis] for axis in axes))
    if index_groups is None:
        lists: list[list[int]] = table.tolist()
        return lists
    if (members := sum(len(group) for group in index_groups)) != table.shape[1]:
        raise ValueError(
            f"{where}: axis_index_groups have {members} of the {table.shape[1]} ranks.\n  Cure: name each rank once."
        )
    return [[int(row[index]) for index in group] for row in table for group in index_groups]


def spans_processes(groups: Groups) -> bool:
    """Whether a group has ranks in several processes."""
    return any(len({device.process for device in group}) > 1 for group in groups)


def cpus_at(mesh: Any, positions: Sequence[Sequence[int]]) -> Groups:
    """The CPU devices at these positions."""
    groups = devices_at(mesh, positions)
    return tuple(tuple(Device(device.process_index, device.id) for device in group) for group in groups)


def devices_at(mesh: Any, positions: Sequence[Sequence[int]]) -> list[list[Any]]:
    """The devices at these positions."""
    devices = jax_compat.devices(mesh)
    return [[devices[position] for position in group] for group in positions]
