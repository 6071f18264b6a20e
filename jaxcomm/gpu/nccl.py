"""All-reduces by whole schedules over NCCL, between GPUs of several processes: one custom call on XLA's stream.

Ranks queue their messages in the program's order and wait for nothing; there is no deadline. NCCL is the copy that JAX
has loaded. All processes lower the same steps in the same order; while they do, their devices join a communicator of
each group, whose id is exchanged through the key-value store of `jaxcomm.distributed`.
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
JOIN_S = 60.0  # for NCCL to connect processes that have all come


def why_off() -> str | None:
    """Why there is no NCCL in this process, in one line, or None where there is one."""
    if not core.is_built():
        return "jaxcomm was built without CUDA"
    return CUDA.failure("nccl_version", path(), ctypes.byref(ctypes.c_int()))


def version() -> tuple[int, int, int]:
    """NCCL's version, such as (2, 30, 7).

    Raises:
      JaxcommError: NCCL is missing; the message says why.
    """
    code = ctypes.c_int()
    if (reason := CUDA.failure("nccl_version", path(), ctypes.byref(code))) is not None:
        raise JaxcommError(f"{reason}.\n  Cure: pip install 'jax[cuda13]'.")
    return code.value // 10000, code.value // 100 % 100, code.value % 100


def lower(context: mlir.LoweringRuleContext, operands: Sequence[Any], request: Request) -> Sequence[Any]:
    """The custom call for an all-reduce, whose communicators are there when this returns.

    Raises:
      PlanError: the plan's schedule cannot be sent.
      JaxcommError: a process does not come, or NCCL cannot connect the ranks before the deadline.
    """
    avals: Sequence[Any] = context.avals_in
    nbytes, dtype = extent([(aval.shape, aval.dtype) for aval in avals])
    schedules = tuple(
        choice.choose_schedule("all_reduce", size, nbytes, dtype, request.plan, request.call)[0]
        for size in sorted({*request.sizes} - {1})
    )
    lowered = jax.ffi.ffi_lowering(TARGET, operand_output_aliases={i: i for i in range(len(operands))})
    results: Sequence[Any] = lowered(context, *operands, **attributes(request, schedules))
    return results


def attributes(request: Request, schedules: tuple[Schedule, ...]) -> dict[str, str]:
    """The attributes of a custom call, whose devices have joined their groups when this returns.

    Args:
      request: the collective.
      schedules: one for each size that a group of the call has.

    Raises:
      PlanError, JaxcommError: as `lower`.
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
    """Registers the custom call with XLA's CUDA backend, once; that needs neither device nor NCCL."""
    CUDA.register(TARGET, "Nccl", "CUDA")


def unique_id() -> bytes:
    """The id of a new group, of 128 bytes, made on one rank and handed to all.

    Raises:
      JaxcommError: there is no NCCL, or it cannot make one.
    """
    made = ctypes.create_string_buffer(ID_BYTES)
    CUDA.call("nccl_id", path(), made)
    return made.raw


def join(group: str, *, ranks: int, rank: int, id: bytes, device: int) -> None:
    """Makes a device of this process a rank of a group, and waits for the others. All ranks must call it.

    Args:
      group: a name for it in this process; no two groups have the same ranks' id.
      ranks: number of ranks.
      rank: this one's, in [0, ranks).
      id: from `unique_id`.
      device: CUDA's number of the device.

    Raises:
      JaxcommError: no NCCL, no such device, or "DeadlineError: …" where a rank does not come.
    """
    CUDA.call("nccl_join", path(), group, device, ranks, rank, id, JOIN_S)


@functools.cache
def path() -> bytes:
    """NVIDIA's wheel of libnccl; empty where it is not installed: then the system's is looked for."""
    spec = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    places = [Path(place, "lib", "libnccl.so.2") for place in (spec.submodule_search_locations or ())] if spec else []
    return str(next((place for place in places if place.exists()), "")).encode()


@functools.lru_cache(maxsize=256)
def _registered(schedules: tuple[Schedule, ...]) -> str:
    """Hands the messages of every rank to the core, proved, and returns the name by which a call finds them."""
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
    """Makes this process's devices ranks of their groups, and returns the name by which a call finds these."""
    digest = hashlib.sha256(json.dumps([groups, axes]).encode()).hexdigest()[:16]
    name, here = f"{axes} {digest[:8]}", jax.process_index()
    _joins[digest] += 1
    prefix = f"{digest}/{_joins[digest]}"  # the same in all processes: a failure is one of all
    mine = [
        (index, rank, device)
        for index, group in enumerate(groups)
        for rank, (process, device) in enumerate(group)
        if process == here
    ]
    indices = sorted({index for index, _, _ in mine})
    # They may be compiling something else before they come, for which NCCL need not wait.
    store.publish(f"{prefix}/here/{here}", "")
    for process in sorted({process for index in indices for process, _ in groups[index]}):
        store.lookup(f"{prefix}/here/{process}", f"process {process} has not come to a call over '{axes}'")
    ids = {}
    for index in indices:
        first, _ = groups[index][0]  # its process makes the group's id
        if first == here:
            store.publish(f"{prefix}/id/{index}", unique_id().hex())
        missing = f"process {first} has not made an id for '{name}'"
        ids[index] = bytes.fromhex(store.lookup(f"{prefix}/id/{index}", missing))

    def join_one(member: tuple[int, int, int]) -> None:
        index, rank, device = member
        join(name, ranks=len(groups[index]), rank=rank, id=ids[index], device=device)

    with ThreadPoolExecutor(max(1, len(mine))) as pool:  # each waits for ranks that may be of this process
        list(pool.map(join_one, mine))
    return name
