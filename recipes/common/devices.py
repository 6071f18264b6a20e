"""The workers of a recipe: all GPUs, or else CPU devices, of all processes of its job. To be imported before JAX."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from jaxcomm.distributed.launch.job import is_job

if TYPE_CHECKING:
    from jax.sharding import Mesh, NamedSharding

CPU_WORKERS = 8
AXIS = "data"

_COUNT = "--xla_force_host_platform_device_count"


def prepare(workers: int = CPU_WORKERS) -> None:
    """Gives JAX `workers` CPU devices if there is no GPU, and joins the job if this process is one of several.

    A number of devices in the environment stays.
    """
    given = os.environ.get("XLA_FLAGS", "")
    if _COUNT not in given:
        os.environ["XLA_FLAGS"] = f"{given} {_COUNT}={workers}".strip()
    # XLA:CPU may stop for ever with fewer than two threads a device in its pool; this is twice that.
    os.environ.setdefault("PJRT_NPROC", str(4 * workers))
    if is_job():
        import jax

        jax.distributed.initialize()


def mesh() -> Mesh:
    """All devices of JAX's default platform, along `AXIS`."""
    import jax

    return jax.sharding.Mesh(jax.devices(), (AXIS,))


def place(data: Any, sharding: NamedSharding) -> Any:
    """A tree of NumPy arrays, the same in all processes, as arrays on the devices of all of them."""
    import jax

    return jax.tree.map(lambda leaf: jax.make_array_from_callback(leaf.shape, sharding, leaf.__getitem__), data)


def is_first() -> bool:
    """Whether this process prints and writes for all: the only one, or the first."""
    import jax

    return jax.process_index() == 0


def from_first(value: Any) -> Any:
    """The first process's value, a tree of numbers and NumPy arrays, in all; they come together there."""
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(value)


def say(text: str) -> None:
    """Prints it once for all processes."""
    if is_first():
        print(text, flush=True)
