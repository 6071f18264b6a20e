"""The fused executor: all-reduces over the GPUs of one process, and over an array's rows as if each were a rank's.

The first is what `jaxcomm.psum` becomes on GPUs, under the name that the core for CPUs has; the second is for tests and
measurements on one GPU.
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

_ALIGNMENT = 16  # bytes of a row


def virtual_psum(
    x: jax.Array, schedule: Schedule, *, reduction: str = "sum", delays_us: jax.typing.ArrayLike | None = None
) -> jax.Array:
    """Reduces over the first axis as ranks of their own would, and gives each the result.

    Args:
      x: [ranks, ...]; row r is rank r's operand.
      schedule: the schedule that the ranks run.
      reduction: "sum", "max" or "min".
      delays_us: int32 [ranks], the microseconds by which each rank comes late; read when the step runs.

    Returns:
      An array like `x`. If a rank missed the deadline it is worthless: `check` raises then, and so does the next call.

    Raises:
      ValueError: the array has not one row for each rank of the schedule.
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
    """Raises the error of a call that has ended and failed, once: wait for its result first.

    Raises:
      JaxcommError: "DeadlineError: …", naming the ranks that did not arrive.
    """
    CUDA.call("fused_check")


def set_deadline(seconds: float) -> None:
    """Sets how long a rank waits for another, in seconds, from the next call on."""
    CUDA.call("fused_set_deadline", seconds)


def sites() -> list[dict[str, Any]]:
    """As `jaxcomm.stats`, by the devices' clocks; those of several devices are compared by way of the host's.

    Nobody waits for a device: a call that still runs comes next time. Of more than 64 calls since the last time only
    the last 64 count.
    """
    sites: list[dict[str, Any]] = json.loads(CUDA.text("fused_stats"))
    return sites


def reset_stats() -> None:
    """Forgets what `stats` has gathered."""
    CUDA.call("fused_reset_stats")


def register_program(name: str, data: bytes) -> None:
    """Hands an encoded program to the core, under the name that a custom call finds it by.

    Raises:
      PlanError: the core's decoder refuses the program; the message says at which word.
    """
    CUDA.call("fused_register", name, data, len(data), raises=PlanError)


def device_key(device: Device) -> int:
    """The number by which the core knows a GPU of any process."""
    return device.process << 16 | device.number


@functools.lru_cache(maxsize=256)
def registered_program(schedule: Schedule) -> str:
    """The name by which a custom call finds a schedule's program; both are registered by then."""
    register()
    data = compile(schedule)
    name = hashlib.sha256(data).hexdigest()[:32]
    register_program(name, data)
    return name


@functools.cache
def register() -> None:
    """Registers the custom call with XLA's CUDA backend, once; that needs no device."""
    import jax

    CUDA.call("fused_set_process", jax.process_index())
    CUDA.register(ffi.TARGET, "Fused", "CUDA", ("instantiate", "initialize", "execute"))
