"""Marks in a jitted step: which device had what when."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxcomm import ffi

_TARGET = "jaxcomm_mark"


class Mark(NamedTuple):
    """A device, by its id, had the operand of the mark of this number, so many seconds after the start."""

    number: int
    device: int
    seconds: float


def mark(x: jax.Array, number: int) -> jax.Array:
    """Hands an array on, and notes when the device has it. On CPUs only; not differentiable."""
    _core()
    call: Any = jax.ffi.ffi_call(_TARGET, jax.typeof(x), input_output_aliases={0: 0})
    marked: jax.Array = call(x, name=np.int64(number))
    return marked


def record(run: Callable[[], Any]) -> list[Mark]:
    """The marks of what `run` calls and waits for, in their order; their seconds count from the call of `run`."""
    core = _core()
    core.jaxcomm_reset_marks()
    run()
    count = core.jaxcomm_marks(None, None, None, 0)
    numbers, devices, seconds = np.zeros(count, np.int64), np.zeros(count, np.int32), np.zeros(count)
    core.jaxcomm_marks(*(array.ctypes.data_as(ctypes.c_void_p) for array in (numbers, devices, seconds)), count)
    return [*map(Mark, numbers.tolist(), devices.tolist(), seconds.tolist())]


@functools.cache
def _core() -> ctypes.CDLL:
    core = ffi._core()
    core.jaxcomm_reset_marks.restype = None
    core.jaxcomm_reset_marks.argtypes = ()
    core.jaxcomm_marks.restype = ctypes.c_int64
    core.jaxcomm_marks.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    capsule: Any = jax.ffi.pycapsule
    jax.ffi.register_ffi_target(_TARGET, capsule(core.JaxcommMark), platform="cpu")
    return core
