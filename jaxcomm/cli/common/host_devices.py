"""Gives JAX several host devices. Call `use_host_devices` before JAX is imported."""

from __future__ import annotations

import os
import re
import sys

from jaxcomm.errors import JaxcommError

_MOST = 1024  # JAX starts 1024 devices in 10 s, and four times this number in 100 s
_COUNT = "--xla_force_host_platform_device_count"


def use_host_devices(count: int) -> None:
    """Makes JAX show `count` CPU devices. The user's other XLA flags stay.

    Args:
      count: number of devices, 2 to 1024.

    Raises:
      JaxcommError: `count` is out of this range, or JAX already runs with too few devices.
    """
    if count < 2:
        raise JaxcommError(f"--devices is {count}; a collective needs at least 2.\n  Cure: --devices 2, or more.")
    if count > _MOST:
        raise JaxcommError(f"--devices is {count}; at most {_MOST} fit into one process.\n  Cure: fewer.")
    if "jax" not in sys.modules:
        others = re.sub(rf"{_COUNT}=\S*", "", os.environ.get("XLA_FLAGS", "")).split()
        os.environ["XLA_FLAGS"] = " ".join([*others, f"{_COUNT}={count}"])
        os.environ["JAX_PLATFORMS"] = "cpu"
        # XLA:CPU may deadlock with fewer than two pool threads per device; this sets four.
        os.environ["PJRT_NPROC"] = str(max(4 * count, int(os.environ.get("PJRT_NPROC") or 0)))
    import jax

    found = len(jax.devices("cpu"))
    if found < count:
        raise JaxcommError(
            f"--devices is {count} but JAX started with {found} host devices.\n"
            f"  Cure: start a new process with XLA_FLAGS={_COUNT}={count}"
        )
