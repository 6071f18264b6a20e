"""The core's part for NVIDIA's GPUs, a shared object of its own: loading it, why it is off, its custom calls.

An installation need not have it, and it loads on a machine that has no GPU.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

from jaxcomm.errors import JaxcommError
from jaxcomm.ffi import SEGMENTS

SAMPLE_BINS = 1 << 15  # counters that "jaxcomm_importance" needs, as its third result
_CALLS = (*SEGMENTS, "reduce")
_LIBRARY = Path(__file__).parent / "jaxcomm_cuda13.so"


def library() -> Path:
    """Where the shared object is, if this installation has it."""
    return _LIBRARY


def is_built() -> bool:
    """Whether this installation has the CUDA core."""
    return _LIBRARY.exists()


def jax_has_it() -> bool:
    """Whether JAX has a CUDA backend with a device in this process."""
    import jax

    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


def runtime_version() -> str:
    """Of the CUDA runtime in the core, such as "13.0"."""
    version: int = core().jaxcomm_cuda_runtime()
    return f"{version // 1000}.{version // 10 % 100}"


def why_off() -> str | None:
    """Why GPUs are not used in this process, in one line, or None where they are."""
    if not is_built():
        return "jaxcomm was built without CUDA"
    reason = ctypes.c_char_p()
    if core().jaxcomm_cuda_devices(ctypes.byref(reason)) < 1:
        return f"no CUDA device ({(reason.value or b'').decode()})"
    return None if jax_has_it() else "JAX has no CUDA backend; pip install 'jax[cuda13]' gives it one"


@functools.cache
def register() -> None:
    """Registers the custom calls with XLA's CUDA backend, once; that needs no device."""
    import jax

    shared = core()
    capsule: Any = jax.ffi.pycapsule
    for name in _CALLS:
        handler = capsule(getattr(shared, f"Jaxcomm{name.capitalize()}"))
        jax.ffi.register_ffi_target(f"jaxcomm_{name}", handler, platform="CUDA")


@functools.cache
def core() -> ctypes.CDLL:
    """The shared object.

    Raises:
      JaxcommError: it is there and cannot be loaded, or is not there.
    """
    try:
        shared = ctypes.CDLL(str(_LIBRARY))
    except OSError as error:
        raise JaxcommError(
            f"jaxcomm's CUDA core cannot be loaded: {error}.\n"
            "  Cure: build it here (`JAXCOMM_CUDA=ON pip install .`), or remove the file to run on CPUs."
        ) from error
    shared.jaxcomm_cuda_runtime.restype = ctypes.c_int
    shared.jaxcomm_cuda_runtime.argtypes = ()
    shared.jaxcomm_cuda_devices.restype = ctypes.c_int
    shared.jaxcomm_cuda_devices.argtypes = (ctypes.POINTER(ctypes.c_char_p),)
    return shared
