"""Whether this process is one of a job, by what those who start processes tell each of them. Imports no JAX."""

from __future__ import annotations

import os
from typing import Final

_COUNTS: Final = ("OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")  # of the job's processes


def is_job() -> bool:
    """Whether it is one of several that Open MPI, SLURM or `jaxcomm launch` started together.

    For these `jax.distributed.initialize()` needs no arguments.
    """
    return any(int(os.environ.get(name) or 1) > 1 for name in _COUNTS)
