"""All-reduces between GPUs of several processes: one custom call runs a whole schedule over NCCL on XLA's stream.

Ranks queue their messages in the program's order and never block. Calls have no deadline. This module uses the copy of
NCCL that JAX has loaded. All processes must lower the same steps in the same order, because a group's devices join the
group's communicator during the lowering. The processes exchange the group's id through the key-value store of
`jaxcomm.distributed`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
from jax.interpreters import mlir

from jaxcomm.collectives import choice
from jaxcomm.collectives.request import Groups, Request, extent
from jaxcomm.distributed import store
from jaxcomm.errors import JaxcommError, PlanError
from jaxcomm.gpu import core
from jaxcomm.gpu.core import CUDA
from jaxcomm.program.message_verifier import verify_messages
from jaxcomm.program.messages import compile_messages
from jaxcomm.schedules import Schedule

TARGET = "jaxcomm_nccl"
ID_BYTES = 128
JOIN_S = 60.0  # seconds in which NCCL must connect the ranks, after all processes have arrived


def why_off() -> str | None:
    """The reason why this process has no NCCL, in one line; None if it has NCCL."""
    if not core.is_built():
        return "jaxcomm was built without CUDA"
    return CUDA.failure("nccl_version", path(), ctypes.byref(ctypes.c_int()))


def version() -> tuple[int, int, int]:
    """NCCL's version, such as (2, 30, 7).

    Raises:
      JaxcommError: NCCL is missing; the text says why.
    """
    code = ctypes.c_int()
    if (reason := CUDA.failure("nccl_version", path(), ctypes.byref(code))) is not None:
        raise JaxcommError(f"{reason}.\n  Cure: pip install 'jax[cuda13]'.")
    return code.value // 10000, code.value // 100 % 100, code.value % 100


def lower(context: mlir.LoweringRuleContext, operands: Sequence[Any], request: Request) -> Sequence[Any]:
    """Lowers an all-reduce to the custom call. The call's communicators exist when this function returns.

    Raises:
      PlanError: the plan's schedule cannot run as messages.
      JaxcommError: a process does not arrive, or NCCL cannot connect the ranks before the deadline.
    """
    avals: Sequence[Any] = context.avals_in
    nbytes, dtype = extent([(aval.shape, aval.dtype) for aval in avals])
    schedules = tuple(
        choice.choose_schedule(choice.SizedCall("all_reduce", size, nbytes, dtype, request.plan, request.call))[0]
        for size in sorted({*request.sizes} - {1})
    )
    lowered = jax.ffi.ffi_lowering(TARGET, operand_output_aliases={i: i for i in range(len(operands))})
    results: Sequence[Any] = lowered(context, *operands, **attributes(request, schedules))
    return results


def attributes(request: Request, schedules: tuple[Schedule, ...]) -> dict[str, str]:
    """The attributes of a custom call. The call's devices have joined their groups when this function returns.

    Args:
      request: the collective.
      schedules: one schedule for each size of the call's groups.

    Raises:
      PlanError, JaxcommError: as in `lower`.
    """
    register()
    return {
        "name": request.name,
        "group": _join(request.groups, request.axes),
        "messages": _registered(schedules),
        "reduction": request.reduction,
    }


@functools.cache
def register() -> None:
    """Registers the custom call with XLA's CUDA backend, once. Needs neither a device nor NCCL."""
    CUDA.register(TARGET, "Nccl", "CUDA")


def unique_id() -> bytes:
    """The id of a new group, 128 bytes. One rank makes the id and hands it to all ranks.

    Raises:
      JaxcommError: NCCL is missing or cannot make an id.
    """
    made = ctypes.create_string_buffer(ID_BYTES)
    CUDA.call("nccl_id", path(), made)
    return made.raw


def join(group: str, *, ranks: int, rank: int, id: bytes, device: int) -> None:
    """Makes a device of this process a rank of a group; blocks until all ranks have called this.

    Args:
      group: the group's name in this process; replaces the device's group of the same name.
      ranks: number of ranks.
      rank: the device's rank, in [0, ranks).
      id: from `unique_id`.
      device: CUDA's id of the device.

    Raises:
      JaxcommError: NCCL or the device is missing, or "DeadlineError: …" if a rank does not join in time.
    """
    CUDA.call("nccl_join", path(), group, device, ranks, rank, id, JOIN_S)


@functools.cache
def path() -> bytes:
    """Path of libnccl in NVIDIA's wheel. Empty if the wheel is missing; the core then loads the system's libnccl."""
    spec = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    places = [Path(place, "lib", "libnccl.so.2") for place in (spec.submodule_search_locations or ())] if spec else []
    return str(next((place for place in places if place.exists()), "")).encode()


@functools.lru_cache(maxsize=256)
def _registered(schedules: tuple[Schedule, ...]) -> str:
    """Verifies and registers the messages of every rank. Returns the name with which a call finds the messages."""
    compiled = {schedule.ranks: compile_messages(schedule) for schedule in schedules}
    for messages in compiled.values():
        verify_messages(messages)
    encoded = {ranks: [each.encode() for each in messages] for ranks, messages in compiled.items()}
    name = hashlib.sha256(b"".join(data for ranks in encoded.values() for data in ranks)).hexdigest()[:32]
    for ranks, lists in encoded.items():
        for data in lists:
            CUDA.call("nccl_register", f"{name}/{ranks}", data, len(data), raises=PlanError)
    return name


_joins: Counter[str] = Counter()


@functools.cache
def _join(groups: Groups, axes: str) -> str:
    """Makes this process's devices ranks of their groups. Returns the name with which a call finds the groups."""
    digest = hashlib.sha256(json.dumps([groups, axes]).encode()).hexdigest()[:16]
    name, here = f"{axes} {digest[:8]}", jax.process_index()
    _joins[digest] += 1
    prefix = f"{digest}/{_joins[digest]}"  # equal in all processes, because a join fails in all processes or in none
    mine = [
        (index, rank, device)
        for index, group in enumerate(groups)
        for rank, (process, device) in enumerate(group)
        if process == here
    ]
    indices = sorted({index for index, _, _ in mine})
    # Waits for processes that still compile other programs, so that this wait does not count against NCCL's deadline.
    store.publish(f"{prefix}/here/{here}", "")
    for process in sorted({process for index in indices for process, _ in groups[index]}):
        store.lookup(f"{prefix}/here/{process}", f"process {process} has not reached a call over '{axes}'")
    ids = {}
    for index in indices:
        first, _ = groups[index][0]  # the first rank's process makes the group's id
        if first == here:
            store.publish(f"{prefix}/id/{index}", unique_id().hex())
        missing = f"process {first} has not made an id for '{name}'"
        ids[index] = bytes.fromhex(store.lookup(f"{prefix}/id/{index}", missing))

    def join_one(member: tuple[int, int, int]) -> None:
        index, rank, device = member
        join(name, ranks=len(groups[index]), rank=rank, id=ids[index], device=device)

    with ThreadPoolExecutor(max(1, len(mine))) as pool:  # a thread per join, because each join waits for all ranks
        list(pool.map(join_one, mine))
    return name
