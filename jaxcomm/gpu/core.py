"""The CUDA core, for NVIDIA's GPUs: its C functions, the reason why it is not used, and its custom calls.

The CUDA core is a separate shared object. An installation may lack it. It also loads on machines without a GPU.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Final

from jaxcomm.arrivals import records
from jaxcomm.ffi import segments
from jaxcomm.ffi.core import TEXT, Core
from jaxcomm.ffi.cpu import ARRIVALS

_PROGRAM = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64)  # types of: a name, the encoded data, its number of bytes
CUDA: Final = Core(
    "CUDA core",
    Path(__file__).parent / "jaxcomm_cuda13.so",
    {
        **ARRIVALS,
        "cuda_check": (),
        "cuda_runtime": (TEXT,),
        "failure": (ctypes.c_char_p, TEXT),
        "fused_register": _PROGRAM,
        "fused_check": (),
        "fused_set_deadline": (ctypes.c_double,),
        "fused_stats": (TEXT,),
        "fused_reset_stats": (),
        "fused_set_process": (ctypes.c_uint32,),
        "cuda_memory": (ctypes.c_int, ctypes.c_uint64, TEXT),
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
    """Path of the shared object. The file exists only if this installation has the CUDA core."""
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
    """Version of the CUDA runtime in the core, such as "13.0"."""
    return CUDA.text("cuda_runtime")


NOT_BUILT: Final = "jaxcomm was built without CUDA"


def cure(off: str, elsewhere: str) -> str:
    """The cure for `off`, a reason from `why_off`: returns `elsewhere` unless jaxcomm was built without CUDA."""
    if off == NOT_BUILT:
        return (
            "on a machine with a GPU, build it in: `JAXCOMM_CUDA=ON pip install '.[cuda13]'` in a checkout of jaxcomm"
        )
    return elsewhere


def why_off() -> str | None:
    """The reason why this process does not use GPUs, in one line; None if it uses them."""
    if not is_built():
        return NOT_BUILT
    if (reason := CUDA.failure("cuda_check")) is not None:
        return f"no CUDA device ({reason})"
    return None if jax_has_it() else "JAX has no CUDA backend; pip install 'jax[cuda13]' gives it one"


@functools.cache
def register() -> None:
    """Registers the custom call for importance masks with XLA's CUDA backend, once. Needs no device."""
    CUDA.register("jaxcomm_importance", "Importance", "CUDA")
    segments.add_platform("cuda")


@functools.cache
def register_arrivals() -> None:
    """Registers with XLA's CUDA backend the custom calls that record arrivals, once. Needs no device."""
    records.add_core(CUDA, "cuda")
