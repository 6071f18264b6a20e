"""The custom call that a request becomes where one core reaches all its devices: its target and its attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxcomm import ffi
from jaxcomm.collectives import choice
from jaxcomm.collectives.request import AllowedDrop, Device, Operand, Request, extent


def target(request: Request) -> str:
    """The custom call's name."""
    if request.divided:
        return ffi.GROUPED_ACROSS if request.site else ffi.GROUPED
    return ffi.ACROSS if request.site else ffi.TARGET


def is_in_place(request: Request) -> bool:
    """Whether each result takes its operand's memory."""
    return request.kind == "all_reduce"


def unsharded(request: Request, operands: int) -> range:
    """Marks the operands whose first dimension must not be sharded."""
    return range(1 if request.divided else 0 if is_in_place(request) else operands)


def attributes(
    request: Request, operands: Sequence[Operand], number: Callable[[Device], int] = lambda device: device.number
) -> dict[str, Any]:
    """The attributes of the custom call; equal on all processes.

    Args:
      request: the collective.
      operands: of one rank.
      number: by which the core knows a device.

    Raises:
      PlanError: the plan is for another number of ranks.
    """
    devices = np.array([number(device) for group in request.groups for device in group], np.int32)
    nbytes, dtype = extent(operands[1:] if request.divided else operands)
    plan = "" if request.plan == choice.AUTO and not _in_order(devices) else request.plan
    choices: dict[tuple[int, ...], choice.Choice] = {}
    hosts = _hosts(request)
    for group in {*hosts}:
        call = request.kind, len(group), nbytes, dtype, plan, request.call
        if request.drop:
            choices[group] = choice.lossy_messages(len(group))
        elif len(group) > 1:
            choices[group] = choice.choose_messages(*call, group) if request.site else choice.choose(*call)
    found: dict[str, Any] = {
        "name": request.name,
        "axes": request.axes,
        "programs": "".join(f"{choices[group].program if len(group) > 1 else ''}," for group in hosts),
    }
    if request.divided:
        found |= {"devices": devices}
    else:
        found |= {
            "kind": request.kind,
            "reduction": request.reduction,
            "plan": choices[max(hosts, key=len)].plan,
            "groups": devices,
            "sizes": np.array(request.sizes, np.int32),
        }
    if request.site:
        processes = [device.process for group in request.groups for device in group]
        found |= request.site._asdict() | {"processes": np.array(processes, np.int32)}
    if request.site and not request.divided:
        drop = request.drop or AllowedDrop((), 0)
        found |= {"shares": np.array(drop.shares, np.float64), "segment_bytes": np.int64(drop.segment_bytes)}
    return found


def core_attributes(request: Request, operands: Sequence[Operand]) -> dict[str, Any]:
    """As `attributes`, with the second schedule of calls that choose between two.

    Between processes only the ranks of a single group learn in time which one the next call runs.
    """
    found = attributes(request, operands)
    if request.divided:
        return found
    nbytes, dtype = extent(operands)
    programs, (late, below, tries) = found["programs"].split(","), (0, 0.0, False)
    others = list(programs)
    for index, (ranks, hosts) in enumerate(zip(request.sizes, _hosts(request), strict=True)):
        alone = len(request.sizes) == 1 or not request.site
        if request.drop or ranks == 1 or not alone:
            continue
        call = request.kind, ranks, nbytes, dtype, request.plan, request.call
        if two := choice.choose_two(*call, hosts if request.site else None, request.tries):
            programs[index], others[index], late, below, tries = two
    switched = {
        "others": ",".join(others),
        "late": np.int64(late),
        "below": np.float64(below),
        "tries": np.int64(tries),
    }
    return found | {"programs": ",".join(programs)} | switched


def _hosts(request: Request) -> list[tuple[int, ...]]:
    """By group and rank a number of the rank's host. Where groups are divided further, nobody knows yet whose ranks
    they will have: of each size one on one host."""
    if request.divided:
        return [(0,) * size for size in range(2, request.sizes[0] + 1)]
    hosts = request.hosts
    return [tuple(hosts[each.process] if hosts else 0 for each in group) for group in request.groups]


def _in_order(devices: NDArray[np.int32]) -> bool:
    """Whether ranks count as devices do, and as the links that a run measures."""
    return bool((np.diff(devices) > 0).all())
