"""The core's part for NVIDIA's GPUs, a shared object of its own: its C functions, why it is off, its custom calls.

An installation need not have it, and it loads on a machine that has no GPU.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Final

from jaxcomm.ffi import segments
from jaxcomm.ffi.core import TEXT, Core

_PROGRAM = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64)  # a name, and bytes
CUDA: Final = Core(
    "CUDA core",
    Path(__file__).parent / "jaxcomm_cuda13.so",
    {
        "cuda_check": (),
        "cuda_runtime": TEXT,
        "failure": (ctypes.c_char_p, *TEXT),
        "fused_register": _PROGRAM,
        "fused_check": (),
        "fused_set_deadline": (ctypes.c_double,),
        "fused_stats": TEXT,
        "fused_reset_stats": (),
        "fused_set_process": (ctypes.c_uint32,),
        "cuda_memory": (ctypes.c_int, ctypes.c_uint64, *TEXT),
        "cuda_reach": (ctypes.c_int, ctypes.c_uint64),
        "nccl_version": (ctypes.c_char_p, ctypes.c_void_p),
        "nccl_id": (ctypes.c_char_p, ctypes.c_char_p),
        "nccl_join": (
            *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint32),
            *(ctypes.c_char_p, ctypes.c_double),
        ),
        "nccl_register": _PROGRAM,
    },
    cure="build it here (`JAXCOMM_CUDA=ON pip install .`), or remove the file to run on CPUs",
)


def library() -> Path:
    """Where the shared object is, if this installation has it."""
    return CUDA.path


def is_built() -> bool:
    """Whether this installation has the CUDA core."""
    return CUDA.path.exists()


def jax_has_it() -> bool:
    """Whether JAX has a CUDA backend with a device in this process."""
    import jax

    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


def runtime_version() -> str:
    """Of the CUDA runtime in the core, such as "13.0"."""
    return CUDA.text("cuda_runtime")


NOT_BUILT: Final = "jaxcomm was built without CUDA"


def cure(off: str, elsewhere: str) -> str:
    """The cure for `why_off`'s reason `off`: another build of jaxcomm, or `elsewhere`, a cure for missing GPUs."""
    if off == NOT_BUILT:
        return (
            "on a machine with a GPU, build it in: `JAXCOMM_CUDA=ON pip install '.[cuda13]'` in a checkout of jaxcomm"
        )
    return elsewhere


def why_off() -> str | None:
    """Why GPUs are not used in this process, in one line, or None where they are."""
    if not is_built():
        return NOT_BUILT
    if (reason := CUDA.failure("cuda_check")) is not None:
        return f"no CUDA device ({reason})"
    return None if jax_has_it() else "JAX has no CUDA backend; pip install 'jax[cuda13]' gives it one"


@functools.cache
def register() -> None:
    """Registers the custom call of masks with XLA's CUDA backend, once; that needs no device."""
    CUDA.register("jaxcomm_importance", "Importance", "CUDA")
    segments.add_platform("cuda")
