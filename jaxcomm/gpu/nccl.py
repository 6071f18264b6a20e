"""NCCL, the copy that JAX has loaded: sums between GPUs of several hosts are sent over it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from importlib.util import find_spec
from pathlib import Path

from jaxcomm.errors import JaxcommError, PlanError
from jaxcomm.gpu import core
from jaxcomm.gpu.core import CUDA
from jaxcomm.program.message_verifier import verify_messages
from jaxcomm.program.messages import compile_messages
from jaxcomm.schedules import Schedule

TARGET = "jaxcomm_messages"
ID_BYTES = 128


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
      JaxcommError: no NCCL, no such device, or "DeadlineError: …" where not all ranks come.
    """
    # The arrival table of this host's ranks. Every rank has opened it when NCCL has connected all ranks, and needs its
    # name no more then.
    arrivals = Path("/dev/shm", f"jaxcomm-{hashlib.sha256(id).hexdigest()[:32]}")
    try:
        CUDA.call("nccl_join", path(), group, device, ranks, rank, id, str(arrivals))
    finally:
        arrivals.unlink(missing_ok=True)


@functools.lru_cache(maxsize=256)
def register_messages(schedules: tuple[Schedule, ...]) -> str:
    """Hands the messages of every rank to the core and returns the name that a call finds them by.

    Args:
      schedules: one for each size that a group of the call has.

    Raises:
      PlanError: a schedule cannot be sent (see `jaxcomm.program.messages`), or its messages do not compute the sum.
    """
    compiled = [compile_messages(schedule) for schedule in schedules]
    for messages in compiled:
        verify_messages(messages)
    ranks = [each.encode() for messages in compiled for each in messages]
    name = hashlib.sha256(b"".join(ranks)).hexdigest()[:32]
    for data in ranks:
        CUDA.call("register_messages", name, data, len(data), raises=PlanError)
    return name


def set_deadline(seconds: float) -> None:
    """Sets how long a rank waits for the others, in seconds, from the next call on."""
    CUDA.call("nccl_set_deadline", seconds)


@functools.cache
def register() -> None:
    """Registers the custom call with XLA's CUDA backend, once; that needs neither device nor NCCL."""
    CUDA.register(TARGET, "Messages", "CUDA")


@functools.cache
def path() -> bytes:
    """NVIDIA's wheel of libnccl; empty where it is not installed: then the system's is looked for."""
    spec = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    places = [Path(place, "lib", "libnccl.so.2") for place in (spec.submodule_search_locations or ())] if spec else []
    return str(next((place for place in places if place.exists()), "")).encode()
