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


def why_off() -> str | None:
    """Why GPUs are not used in this process, in one line, or None where they are."""
    if not is_built():
        return "jaxcomm was built without CUDA"
    reason = ctypes.c_char_p()
    if core().jaxcomm_cuda_devices(ctypes.byref(reason)) < 1:
        return f"no CUDA device ({(reason.value or b'').decode()})"
    return None if jax_has_it() else "JAX has no CUDA backend; pip install 'jaxcomm[cuda13]' gives it one"


@functools.cache
def register() -> None:
    """Registers the custom calls with XLA's CUDA backend, once; that needs no device."""
    import jax

    library = core()
    capsule: Any = jax.ffi.pycapsule
    for name in _CALLS:
        handler = capsule(getattr(library, f"Jaxcomm{name.capitalize()}"))
        jax.ffi.register_ffi_target(f"jaxcomm_{name}", handler, platform="CUDA")


def all_reduce(target: str, tree: Any, reduction: str, *, in_place: bool, **attributes: Any) -> Any:
    """A tree of arrays through a custom call that reduces each over ranks; the call's other attributes are given."""
    import jax

    leaves: list[Any]
    structure: Any
    leaves, structure = jax.tree.flatten(tree)
    call = jax.ffi.ffi_call(
        target,
        [jax.typeof(leaf) for leaf in leaves],
        has_side_effect=True,  # other ranks wait for it, whether or not somebody reads the result
        input_output_aliases={i: i for i in range(len(leaves))} if in_place else None,
    )
    what = {"sum": "psum"}.get(reduction, f"p{reduction}")
    return structure.unflatten(call(*leaves, what=what, reduction=reduction, **attributes))


@functools.cache
def core() -> ctypes.CDLL:
    """The shared object.

    Raises:
      JaxcommError: it is there and cannot be loaded, or is not there.
    """
    try:
        library = ctypes.CDLL(str(_LIBRARY))
    except OSError as error:
        raise JaxcommError(
            f"jaxcomm's CUDA core cannot be loaded: {error}.\n"
            "  Cure: build it here (`JAXCOMM_CUDA=ON pip install .`), or remove the file to run on CPUs."
        ) from error
    library.jaxcomm_cuda_devices.restype = ctypes.c_int
    library.jaxcomm_cuda_devices.argtypes = (ctypes.POINTER(ctypes.c_char_p),)
    return library
