"""Detects from environment variables whether this process is in a job of several processes. Does not import JAX."""

from __future__ import annotations

import os
from typing import Final

from jaxcomm.errors import JaxcommError

_COUNTS: Final = ("OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")  # variables with the number of the job's processes
_NUMBERS: Final = ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID")  # variables with the number of this process


def is_job() -> bool:
    """Returns whether Open MPI, SLURM or `jaxcomm launch` started this process together with other processes.

    In such a process `jax.distributed.initialize()` needs no arguments.

    Raises:
      JaxcommError: a variable for the number of processes holds no number.
    """
    return any(_count(name) > 1 for name in _COUNTS)


def is_first_process() -> bool:
    """Returns whether this process is the first of its job, or the only one."""
    return all(os.environ.get(name, "0") == "0" for name in _NUMBERS)


def _count(name: str) -> int:
    text = os.environ.get(name) or "1"
    try:
        return int(text)
    except ValueError as error:
        raise JaxcommError(
            f"{name} is {text!r}, not the number of the job's processes.\n  Cure: unset it, or start the job anew."
        ) from error
