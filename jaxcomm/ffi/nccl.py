"""Allreduces by sends and receives between processes, over the NCCL that JAX has loaded.

nccl.join("data", ranks=4, rank=0, ids=ids)  # every rank; one made the ids by unique_id
y = nccl.all_reduce(x, schedules.ring(4), "data")  # inside or outside of jit
nccl.shrink("data", gone=[2])  # after a fault, on all that remain
nccl.leave("data")

It is also what `jaxcomm.psum` becomes on GPUs of several hosts.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxcomm.errors import JaxcommError, PlanError
from jaxcomm.ffi import cuda
from jaxcomm.plan.messages import compile_messages
from jaxcomm.schedules import Schedule

TARGET = "jaxcomm_messages"
ID_BYTES = 128
# Each is to be set once the section of benchmarks/gpu.py that sets it for itself has passed. "nccl psum": whether
# all-reduces over GPUs of several hosts follow plans; where it is not set, they stay jax.lax's.
HOSTS = False
# "nccl psum lent": whether they do so over communicators that XLA lends, where it does; else over ours.
LENT = False


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
        raise JaxcommError(f"{reason.value.decode()}.\n  Cure: pip install 'jaxcomm[cuda13]'.")
    return code // 10000, code // 100 % 100, code % 100


def unique_id() -> bytes:
    """The id of a new rail, of 128 bytes, made on one rank and handed to all.

    Raises:
      JaxcommError: there is no NCCL, or it cannot make one.
    """
    made = ctypes.create_string_buffer(ID_BYTES)
    _call("jaxcomm_nccl_id", path(), made)
    return made.raw


def join(
    group: str,
    *,
    ranks: int,
    rank: int,
    ids: Mapping[str, bytes],
    partitions: Sequence[Sequence[int]] = (),
    device: int = 0,
    deadline_s: float | None = 60.0,
) -> None:
    """Makes a device of this process a rank of a group. All ranks must call it, with equal rails and partitions.

    Args:
      group: a name for it in this process.
      ranks: number of ranks.
      rank: this one's, in [0, ranks).
      ids: from `unique_id`, by the net module of each rail: "IB", "Socket"; "": NCCL chooses one.
      partitions: for each iteration of a period, the number of every rank's group; the groups are made now.
      device: CUDA's number of the device.
      deadline_s: how long to wait for the others, now and in every call; None: as `jaxcomm.init` has it.

    Raises:
      JaxcommError: no NCCL, an argument that cannot be, or "DeadlineError: …" where not all ranks come.
    """
    sizes = {f"ids[{name!r}]": len(each) for name, each in ids.items()}
    wrong = [f"{what} has {size} bytes, not {ID_BYTES}" for what, size in sizes.items() if size != ID_BYTES]
    counts = {f"partitions[{i}]": len(each) for i, each in enumerate(partitions)}
    wrong += [f"{what} has {count} ranks, not {ranks}" for what, count in counts.items() if count != ranks]
    wrong += [f"rank is {rank} of {ranks}"] if not 0 <= rank < ranks else []
    wrong += ["ids names no rail"] if not ids else []
    if wrong:
        raise JaxcommError(f"group {group!r}: {wrong[0]}.\n  Cure: give every rank the same rails and partitions.")
    modules = "".join(f"{name}\n" for name in ids)
    groups = np.array(partitions, np.uint32).tobytes()
    board = Board(hashlib.sha256(b"".join(ids.values())).hexdigest()[:32])
    with board.shared() as file:
        _call(
            "jaxcomm_nccl_join",
            *(path(), group.encode(), device, ranks, rank, modules.encode(), b"".join(ids.values())),
            *(groups, len(partitions), file, deadline_s or 0.0),
        )
    _boards[group, device] = board


def shrink(group: str, gone: Sequence[int], device: int = 0) -> None:
    """Goes on without some ranks, after a fault or before one. All that remain must call it, with the same list.

    They are numbered anew, in their order, and run schedules for so many ranks; there are no partitions any more.

    Args:
      group: the name that `join` was given.
      gone: the ranks that leave it, as they were numbered, each once.
      device: CUDA's number of the device.

    Raises:
      JaxcommError: the device has not joined, `gone` cannot go, this NCCL cannot do it (it needs ncclCommRevoke), or
        "DeadlineError: …" where not all that remain come.
    """
    board = _boards.get((group, device), Board("")).without(gone)
    leaving = np.array(gone, np.uint32)
    with board.shared() as file:
        _call("jaxcomm_nccl_without", group.encode(), device, leaving.tobytes(), leaving.size, file)
    _boards[group, device] = board


def leave(group: str, device: int = 0) -> None:
    """Ends a device's part in a group, after the call that it may be in."""
    _core().jaxcomm_nccl_leave(group.encode(), device)
    _boards.pop((group, device), None)


def all_reduce(
    tree: Any,
    schedule: Schedule,
    group: str,
    *,
    reduction: str = "sum",
    iteration: int | None = None,
    shares: Sequence[float] = (1.0,),
) -> Any:
    """The sum over the ranks of a group of a tree of arrays on a CUDA device, with the bits of the schedule's program.

    Args:
      tree: an array, or a tree of arrays.
      schedule: for as many ranks as take part.
      group: the name that `join` was given.
      reduction: "sum", "max" or "min".
      iteration: only with the ranks of this rank's group in that iteration of the period; None: with all.
      shares: how the bytes are split over the rails, in the order of `join`'s `ids`; only their ratios count. Rails
        beyond them carry nothing. A group of the period is on the first rail alone.

    Raises:
      JaxcommError: there is no CUDA core, or shares that cannot be. What goes wrong in the call is an error of JAX's,
        with a message of ours.
    """
    if any(not math.isfinite(share) or share < 0 for share in shares) or not sum(shares) > 0:
        raise JaxcommError(f"shares are {list(shares)}; they must be finite, not negative, and not all 0")
    if iteration is not None and len(shares) > 1:
        raise JaxcommError("a group of the period is on the first rail alone.\n  Cure: leave out `shares`.")
    register()
    return cuda.all_reduce(
        TARGET,
        tree,
        reduction,
        in_place=True,
        group=group,
        iteration=np.int64(-1 if iteration is None else iteration),
        messages=register_messages((schedule,)),
        shares=np.array(shares, np.float64),
    )


@functools.lru_cache(maxsize=256)
def register_messages(schedules: tuple[Schedule, ...]) -> str:
    """Hands the messages of every rank to the core and returns the name that a call finds them by.

    Args:
      schedules: one for each size that a group of the call has.

    Raises:
      PlanError: a schedule cannot be sent (see `jaxcomm.plan.messages`).
    """
    ranks = [messages.encode() for schedule in schedules for messages in compile_messages(schedule)]
    name = hashlib.sha256(b"".join(ranks)).hexdigest()[:32]
    error = ctypes.create_string_buffer(1024)
    for data in ranks:
        if _core().jaxcomm_register_messages(name.encode(), data, len(data), error, len(error)):
            raise PlanError(error.value.decode())
    return name


def set_deadline(seconds: float) -> None:
    """Sets how long a call waits, in groups without a deadline of their own, in seconds, from the next call on."""
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


class Board(NamedTuple):
    """Where the ranks of this host tell each other that they have come; all ranks of a group know its name."""

    name: str

    def without(self, gone: Sequence[int]) -> Board:
        left = f"{self.name} without {sorted(gone)}"
        return Board(hashlib.sha256(left.encode()).hexdigest()[:32])

    @contextmanager
    def shared(self) -> Iterator[bytes]:
        """Its file, which every rank has opened when NCCL has brought all ranks together, and needs no more then."""
        file = Path("/dev/shm", f"jaxcomm-{self.name}")
        try:
            yield str(file).encode()
        finally:
            file.unlink(missing_ok=True)


_boards: dict[tuple[str, int], Board] = {}  # by group and device


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
        *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint32),
        *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_double),
        *text,
    )
    core.jaxcomm_nccl_without.restype = ctypes.c_int64
    core.jaxcomm_nccl_without.argtypes = (
        *(ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_char_p),
        *text,
    )
    core.jaxcomm_nccl_leave.restype = None
    core.jaxcomm_nccl_leave.argtypes = (ctypes.c_char_p, ctypes.c_int)
    core.jaxcomm_nccl_set_deadline.restype = None
    core.jaxcomm_nccl_set_deadline.argtypes = (ctypes.c_double,)
    core.jaxcomm_register_messages.restype = ctypes.c_int64
    core.jaxcomm_register_messages.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, *text)
    return core
