"""Functions for commands that all processes of a job run together. `jaxcomm launch`, SLURM or Open MPI starts jobs."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxcomm.cli.common.host_devices import use_host_devices
from jaxcomm.distributed.launch.job import is_job


def use_devices(count: int) -> int:
    """Gives JAX its devices: all devices of the job, or `count` host devices if there is only one process.

    Returns:
      The number of devices.

    Raises:
      JaxcommError: `use_host_devices` failed.
    """
    if not is_job():
        use_host_devices(count)
        return count
    import jax

    jax.distributed.initialize()
    return len(jax.devices("cpu"))


def is_first() -> bool:
    """Whether this process prints for all: the only process, or the first process of a job."""
    import jax

    return jax.process_index() == 0


def agree(value: float) -> float:
    """Returns, in all processes, the first process's value. Blocks until all processes have called this."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return value
    agreed: Any = multihost_utils.broadcast_one_to_all(np.float64(value))
    return float(agreed)


def barrier() -> None:
    """Blocks until all processes have called this."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("barrier")


def total(value: float) -> float:
    """Returns, in all processes, the sum of all processes' values. All processes must call this."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return value
    gathered: Any = multihost_utils.process_allgather(np.float64(value))
    return float(np.sum(gathered))


def greatest(value: float) -> float:
    """Returns, in all processes, the greatest of all processes' values. All processes must call this."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return value
    gathered: Any = multihost_utils.process_allgather(np.float64(value))
    return float(np.max(gathered))
