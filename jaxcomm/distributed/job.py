"""Whether this process is one of a job, by the variables that launchers set. Imports no JAX."""

from __future__ import annotations

import os
from typing import Final

from jaxcomm.errors import JaxcommError

_COUNTS: Final = ("OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")  # of the job's processes


def is_job() -> bool:
    """Whether it is one of several that Open MPI, SLURM or `jaxcomm launch` started together.

    For these `jax.distributed.initialize()` needs no arguments.

    Raises:
      JaxcommError: a variable that says how many there are holds no number.
    """
    return any(_count(name) > 1 for name in _COUNTS)


def _count(name: str) -> int:
    text = os.environ.get(name) or "1"
    try:
        return int(text)
    except ValueError as error:
        raise JaxcommError(
            f"{name} is {text!r}; it is the number of the job's processes.\n  Cure: unset it, or start the job anew."
        ) from error
