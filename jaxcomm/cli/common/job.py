"""A command that several processes run together, as `jaxcomm launch`, SLURM and Open MPI start them."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxcomm.cli.common.host_devices import use_host_devices
from jaxcomm.distributed.job import is_job


def use_devices(count: int) -> int:
    """Gives JAX its devices: those of all processes of the job, or `count` host devices where there is one process.

    Returns:
      How many there are.

    Raises:
      JaxcommError: as `use_host_devices`.
    """
    if not is_job():
        use_host_devices(count)
        return count
    import jax

    jax.distributed.initialize()
    return len(jax.devices("cpu"))


def is_first() -> bool:
    """Whether this process speaks for all: the only one, or the first."""
    import jax

    return jax.process_index() == 0


def agree(value: float) -> float:
    """The first process's value, in all of them. All must call it; they come together there."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return value
    agreed: Any = multihost_utils.broadcast_one_to_all(np.float64(value))
    return float(agreed)


def barrier() -> None:
    """Returns once all processes have called it."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("barrier")


def total(value: float) -> float:
    """The sum of all processes' values, in all of them. All must call it."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return value
    gathered: Any = multihost_utils.process_allgather(np.float64(value))
    return float(np.sum(gathered))


def greatest(value: float) -> float:
    """The greatest of all processes' values, in all of them. All must call it."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return value
    gathered: Any = multihost_utils.process_allgather(np.float64(value))
    return float(np.max(gathered))
