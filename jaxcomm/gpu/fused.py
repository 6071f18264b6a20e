"""The fused executor: all-reduces over the GPUs of one process, and over the rows of an array on one GPU.

`jaxcomm.psum` on GPUs becomes an all-reduce over GPUs, with the same custom-call name as on CPUs. An all-reduce over
rows is for tests and measurements on one GPU: each row is the operand of a virtual rank.
"""

from __future__ import annotations

import functools
import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxcomm import ffi
from jaxcomm.collectives.request import Device
from jaxcomm.errors import PlanError
from jaxcomm.gpu.core import CUDA
from jaxcomm.program.program import compile

if TYPE_CHECKING:
    import jax

    from jaxcomm.schedules import Schedule

_ALIGNMENT = 16  # a row is padded to a multiple of this number of bytes


def virtual_psum(
    x: jax.Array, schedule: Schedule, *, reduction: str = "sum", delays_us: jax.typing.ArrayLike | None = None
) -> jax.Array:
    """Reduces over the first axis as if each row were the operand of a rank. Every row of the output is the result.

    Args:
      x: [ranks, ...]; row r is rank r's operand.
      schedule: the schedule that the ranks run.
      reduction: "sum", "max" or "min".
      delays_us: int32 [ranks], the microseconds by which each rank is late; read when the step runs.

    Returns:
      An array like `x`. If a rank missed the deadline, the array is invalid, and `check` or the next call raises.

    Raises:
      ValueError: the array's rows do not match the schedule's ranks.
    """
    import jax
    import jax.numpy as jnp

    if x.ndim == 0 or x.shape[0] != schedule.ranks:
        raise ValueError(f"virtual_psum: the array is {x.shape}, the schedule is for {schedule.ranks} ranks")
    program = registered_program(schedule)
    delays = jnp.zeros(schedule.ranks, jnp.int32) if delays_us is None else jnp.asarray(delays_us, jnp.int32)
    rows = x.reshape(schedule.ranks, -1)
    padding = -rows.shape[1] % (_ALIGNMENT // min(_ALIGNMENT, x.dtype.itemsize))
    padded = jnp.pad(rows, ((0, 0), (0, padding)))
    call = jax.ffi.ffi_call(ffi.TARGET, jax.ShapeDtypeStruct(padded.shape, x.dtype), input_output_aliases={0: 0})
    ranks = {"groups": np.arange(schedule.ranks, dtype=np.int32), "sizes": np.array([schedule.ranks], np.int32)}
    names = {"name": "psum", "axes": "virtual", "plan": schedule.kind, "programs": f"{program},"}
    result: jax.Array = call(padded, delays, kind="virtual", reduction=reduction, **names, **ranks)
    return result[:, : rows.shape[1]].reshape(x.shape)


def check() -> None:
    """Raises the error of a failed call, once. The caller must have waited for the call's result.

    Raises:
      JaxcommError: "DeadlineError: …" with the ranks that did not arrive.
    """
    CUDA.call("fused_check")


def set_deadline(seconds: float) -> None:
    """Sets how many seconds a rank waits for another rank, from the next call on."""
    CUDA.call("fused_set_deadline", seconds)


def sites() -> list[dict[str, Any]]:
    """Statistics as in `jaxcomm.stats`. Times are by the devices' clocks, which are compared through the host's clock.

    Does not wait for devices, so the next read includes a call that still runs. If more than 64 calls have run since
    the statistics were last read, only the last 64 calls count.
    """
    sites: list[dict[str, Any]] = json.loads(CUDA.text("fused_stats"))
    return sites


def reset_stats() -> None:
    """Clears the statistics of `sites`."""
    CUDA.call("fused_reset_stats")


def register_program(name: str, data: bytes) -> None:
    """Registers an encoded program with the core. A custom call finds the program by `name`.

    Raises:
      PlanError: the core's decoder refuses the program; the error text names the invalid word.
    """
    CUDA.call("fused_register", name, data, len(data), raises=PlanError)


def calls() -> dict[str, list[dict[str, Any]]]:
    """Returns no calls: dumps of the latest calls do not contain calls of the fused kernel."""
    return {}


def device_key(device: Device) -> int:
    """The number that the core uses for a GPU; unique among the GPUs of all processes."""
    return device.process << 16 | device.number


@functools.lru_cache(maxsize=256)
def registered_program(schedule: Schedule) -> str:
    """Registers a schedule's program and the custom call. Returns the name with which the call finds the program."""
    register()
    data = compile(schedule)
    name = hashlib.sha256(data).hexdigest()[:32]
    register_program(name, data)
    return name


@functools.cache
def register() -> None:
    """Registers the custom call with XLA's CUDA backend, once. Needs no device."""
    import jax

    CUDA.call("fused_set_process", jax.process_index())
    CUDA.register(ffi.TARGET, "Fused", "CUDA", ("instantiate", "initialize", "execute"))
