"""Communicators that XLA owns and lends for a call of messages, where jaxlib has its extension for collectives.

A part of the core of its own does it, which an installation has only if its jaxlib has the extension (from 0.11.2 on).

XLA alone may end such a communicator. Where a call on one fails, say because a rank has not arrived before the
deadline, the error says who is missing, as far as that is known, and every later call is told the same; but NCCL's
kernel stays on the GPU and may wait there for ever, and all later work of the GPU waits behind it: the process must
end. Communicators of ours are stopped instead, and the GPU is free again.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

from jaxcomm.errors import JaxcommError
from jaxcomm.ffi import cuda, nccl

TARGET = "jaxcomm_messages_xla"
_LIBRARY = Path(__file__).parent / "jaxcomm_cuda13_xla.so"


def why_off() -> str | None:
    """Why XLA lends no communicators in this process, in one line, or None where it may."""
    if not cuda.is_built():
        return "jaxcomm was built without CUDA"
    return None if _LIBRARY.exists() else "jaxcomm was built for a jaxlib without XLA's extension for collectives"


def borrow(group: str, *, ranks: int, rank: int, device: int, board: bytes) -> None:
    """Makes a device of this process a rank of a group whose communicator XLA lends for each call. Waits for nobody.

    Args:
      group: a name for it in this process.
      ranks: number of ranks.
      rank: this one's, in [0, ranks).
      device: CUDA's number of the device.
      board: path of a file by which the ranks of this host see who has come (see `nccl.Board`).

    Raises:
      JaxcommError: there is no NCCL, no such device, or the file cannot be shared.
    """
    error = ctypes.create_string_buffer(4096)
    if _core().jaxcomm_nccl_borrow(nccl.path(), group.encode(), device, ranks, rank, board, error, len(error)):
        raise JaxcommError(error.value.decode())


@functools.cache
def register() -> None:
    """Registers the custom call with XLA's CUDA backend, once; that needs neither device nor NCCL.

    Raises:
      JaxcommError: the part of the core that borrows cannot be loaded.
    """
    import jax

    try:
        lender = ctypes.CDLL(str(_LIBRARY))
    except OSError as error:
        raise JaxcommError(
            f"jaxcomm's part that borrows XLA's communicators cannot be loaded: {error}.\n"
            "  Cure: build it here (`JAXCOMM_CUDA=ON pip install .`), or remove the file to use communicators of ours."
        ) from error
    _core().jaxcomm_nccl_lender(ctypes.cast(lender.jaxcomm_xla_lend, ctypes.c_void_p))
    capsule: Any = jax.ffi.pycapsule
    stages = {"prepare": capsule(_core().JaxcommMessagesPrepare), "execute": capsule(_core().JaxcommMessagesLent)}
    jax.ffi.register_ffi_target(TARGET, stages, platform="CUDA")


@functools.cache
def _core() -> ctypes.CDLL:
    core = cuda.core()
    core.jaxcomm_nccl_lender.restype = None
    core.jaxcomm_nccl_lender.argtypes = (ctypes.c_void_p,)
    core.jaxcomm_nccl_borrow.restype = ctypes.c_int64
    core.jaxcomm_nccl_borrow.argtypes = (
        *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p),
        *(ctypes.c_char_p, ctypes.c_int64),
    )
    return core
