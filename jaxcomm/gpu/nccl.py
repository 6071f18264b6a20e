"""NCCL, the copy that JAX has loaded: what sums between GPUs of several hosts are sent over."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jaxcomm.errors import JaxcommError, PlanError
from jaxcomm.ffi import cuda
from jaxcomm.program.message_verifier import verify_messages
from jaxcomm.program.messages import compile_messages
from jaxcomm.schedules import Schedule

TARGET = "jaxcomm_messages"
ID_BYTES = 128


def why_off() -> str | None:
    """Why there is no NCCL in this process, in one line, or None where there is one."""
    if not cuda.is_built():
        return "jaxcomm was built without CUDA"
    reason = ctypes.create_string_buffer(1024)
    return None if _core().jaxcomm_nccl_version(path(), reason, len(reason)) else reason.value.decode()


def version() -> tuple[int, int, int]:
    """NCCL's version, such as (2, 30, 7).

    Raises:
      JaxcommError: there is none; the message says why.
    """
    reason = ctypes.create_string_buffer(1024)
    code: int = _core().jaxcomm_nccl_version(path(), reason, len(reason))
    if not code:
        raise JaxcommError(f"{reason.value.decode()}.\n  Cure: pip install 'jax[cuda13]'.")
    return code // 10000, code // 100 % 100, code % 100


def unique_id() -> bytes:
    """The id of a new group, of 128 bytes, made on one rank and handed to all.

    Raises:
      JaxcommError: there is no NCCL, or it cannot make one.
    """
    made = ctypes.create_string_buffer(ID_BYTES)
    _call("jaxcomm_nccl_id", path(), made)
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
    # Where the ranks of this host tell each other that they have come. Every rank has opened it when NCCL has brought
    # all ranks together, and needs its name no more then.
    board = Path("/dev/shm", f"jaxcomm-{hashlib.sha256(id).hexdigest()[:32]}")
    try:
        _call("jaxcomm_nccl_join", path(), group.encode(), device, ranks, rank, id, str(board).encode())
    finally:
        board.unlink(missing_ok=True)


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
    error = ctypes.create_string_buffer(1024)
    for data in ranks:
        if _core().jaxcomm_register_messages(name.encode(), data, len(data), error, len(error)):
            raise PlanError(error.value.decode())
    return name


def set_deadline(seconds: float) -> None:
    """Sets how long a rank waits for the others, in seconds, from the next call on."""
    _core().jaxcomm_nccl_set_deadline(seconds)


@functools.cache
def register() -> None:
    """Registers the custom call with XLA's CUDA backend, once; that needs neither device nor NCCL."""
    import jax

    capsule: Any = jax.ffi.pycapsule
    jax.ffi.register_ffi_target(TARGET, capsule(_core().JaxcommMessages), platform="CUDA")


def _call(name: str, *arguments: Any) -> None:
    error = ctypes.create_string_buffer(4096)
    if getattr(_core(), name)(*arguments, error, len(error)):
        raise JaxcommError(error.value.decode())


@functools.cache
def path() -> bytes:
    """NVIDIA's wheel of libnccl; empty where it is not installed: then the system's is looked for."""
    spec = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    places = [Path(place, "lib", "libnccl.so.2") for place in (spec.submodule_search_locations or ())] if spec else []
    return str(next((place for place in places if place.exists()), "")).encode()


@functools.cache
def _core() -> ctypes.CDLL:
    core = cuda.core()
    text = (ctypes.c_char_p, ctypes.c_int64)
    core.jaxcomm_nccl_version.restype = ctypes.c_int64
    core.jaxcomm_nccl_version.argtypes = (ctypes.c_char_p, *text)
    core.jaxcomm_nccl_id.restype = ctypes.c_int64
    core.jaxcomm_nccl_id.argtypes = (ctypes.c_char_p, ctypes.c_char_p, *text)
    core.jaxcomm_nccl_join.restype = ctypes.c_int64
    core.jaxcomm_nccl_join.argtypes = (
        *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p),
        *(ctypes.c_char_p, *text),
    )
    core.jaxcomm_nccl_set_deadline.restype = None
    core.jaxcomm_nccl_set_deadline.argtypes = (ctypes.c_double,)
    core.jaxcomm_register_messages.restype = ctypes.c_int64
    core.jaxcomm_register_messages.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, *text)
    return core
