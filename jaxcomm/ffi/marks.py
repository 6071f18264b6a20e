"""Marks in a jitted step. A mark records the time at which an array became available on each device."""

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
    """The time at which a device had computed the operand of mark `number`, in seconds since `record` called `run`."""

    number: int
    device: int
    seconds: float


def mark(x: jax.Array, number: int) -> jax.Array:
    """Returns an array unchanged and records when the device has the array. On CPUs only; not differentiable."""
    _register()
    call: Any = jax.ffi.ffi_call(_TARGET, jax.typeof(x), input_output_aliases={0: 0})
    marked: jax.Array = call(x, name=np.int64(number))
    return marked


def record(run: Callable[[], Any]) -> list[Mark]:
    """Calls `run`, which must wait for its own steps, and returns the steps' marks in order.

    The marks' seconds count from the call of `run`.
    """
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
