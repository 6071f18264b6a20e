"""The workers of a recipe: all GPUs of this machine, or else CPU devices. To be imported before JAX."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax.sharding import Mesh

CPU_WORKERS = 8
AXIS = "data"

_COUNT = "--xla_force_host_platform_device_count"


def prepare(workers: int = CPU_WORKERS) -> None:
    """Gives JAX so many CPU devices, should there be no GPU; an environment that already says how many is kept."""
    given = os.environ.get("XLA_FLAGS", "")
    if _COUNT not in given:
        os.environ["XLA_FLAGS"] = f"{given} {_COUNT}={workers}".strip()
    # XLA:CPU may stop for ever with fewer than two threads a device in its pool; this is twice that.
    os.environ.setdefault("PJRT_NPROC", str(4 * workers))


def mesh() -> Mesh:
    """All devices of JAX's default platform, along `AXIS`."""
    import jax

    return jax.make_mesh((jax.device_count(),), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
