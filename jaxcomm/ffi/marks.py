"""Marks in a jitted step: which device had what when."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxcomm.ffi.cpu import CPU

_TARGET = "jaxcomm_mark"


class Mark(NamedTuple):
    """A device, by its id, had the operand of the mark of this number these seconds after the start."""

    number: int
    device: int
    seconds: float


def mark(x: jax.Array, number: int) -> jax.Array:
    """Hands an array on, and notes when the device has it. On CPUs only; not differentiable."""
    _register()
    call: Any = jax.ffi.ffi_call(_TARGET, jax.typeof(x), input_output_aliases={0: 0})
    marked: jax.Array = call(x, name=np.int64(number))
    return marked


def record(run: Callable[[], Any]) -> list[Mark]:
    """The marks of what `run` calls and waits for, in their order; their seconds count from the call of `run`."""
    CPU.call("reset_marks")
    run()
    count = ctypes.c_int64()
    CPU.call("marks", None, None, None, 0, ctypes.byref(count))
    made = count.value
    numbers, devices, seconds = np.zeros(made, np.int64), np.zeros(made, np.int32), np.zeros(made)
    CPU.call("marks", *(array.ctypes.data for array in (numbers, devices, seconds)), made, ctypes.byref(count))
    return [*map(Mark, numbers.tolist(), devices.tolist(), seconds.tolist())]


@functools.cache
def _register() -> None:
    CPU.register(_TARGET, "Mark", "cpu")
