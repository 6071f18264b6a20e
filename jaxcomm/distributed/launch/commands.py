"""Commands and environments of a job's processes on this machine.

In these processes `jax.distributed.initialize()` needs no arguments. All supported versions of JAX read the variables
that SLURM sets for job steps, so this module sets the same variables.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from jaxcomm.environment import LAUNCHER
from jaxcomm.errors import JaxcommError

_COUNT = "--xla_force_host_platform_device_count"
_PORTS = range(20000, 32768)  # below Linux's ephemeral ports
_OPEN_MPI = ("OMPI_COMM_WORLD_", "OMPI_MCA_orte_hnp_uri")  # JAX would prefer these variables to SLURM's


def command(words: Sequence[str], *, is_module: bool = False) -> list[str]:
    """Returns the command of each process: a Python script, a Python module, or another program.

    Args:
      words: the script's path, the module's name or the program, and its arguments.
      is_module: whether the first word is a module's name.

    Raises:
      JaxcommError: there is no such script or program.
    """
    if is_module:
        return [sys.executable, "-m", *words]
    first = words[0]
    if first.endswith(".py"):
        if not os.path.isfile(first):
            raise JaxcommError(f"there is no script {first}.\n  Cure: check the path.")
        return [sys.executable, *words]
    if not shutil.which(first):
        raise JaxcommError(
            f"there is no program {first!r}.\n  Cure: a script's name ends in .py; a module's comes after -m."
        )
    return [*words]


def local_coordinator() -> str:
    """Returns a free "host:port" on this machine.

    The port is not ephemeral, because a connection could take an ephemeral port before the coordinator listens.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return f"127.0.0.1:{port}"
    raise JaxcommError("no port from 20000 to 32767 is free.\n  Cure: end the processes that listen there.")


def variables(
    process: int,
    processes: int,
    *,
    devices: int,
    coordinator: str,
    environment: Mapping[str, str],
    keeps_going: bool = False,
    own_service: str | None = None,
    further: Mapping[str, str] = MappingProxyType({}),
    processors: int | None = None,
) -> dict[str, str]:
    """Returns the environment variables to set for a process. They override variables of `environment`.

    Args:
      process: number of the process.
      processes: number of processes in the job.
      devices: the number of CPU devices of each process, or of its GPUs if JAX_PLATFORMS names GPUs.
      coordinator: the coordinator's "host:port".
      environment: the current variables.
      keeps_going: whether the other processes may go on when a process ends.
      own_service: the "host:port" at which process 0's own coordination service listens; None: at `coordinator`. If
        given, the job uses the service that another process runs at `coordinator`.
      further: more variables, the same for all processes.
      processors: the number of processors on which the process runs; None: all of the machine.
    """
    flags = re.sub(rf"{_COUNT}=\S*", "", environment.get("XLA_FLAGS", "")).split()
    # XLA:CPU may hang if its pool has fewer than two threads for each of several devices. For one device on one
    # processor it needs one thread, and then the thread that calls a step also runs it.
    least = 2 * devices if devices > 1 else 1
    threads = max(least, processors or os.cpu_count() or 1, int(environment.get("PJRT_NPROC") or 0))
    first = process * devices
    return {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": str(processes),
        "SLURM_PROCID": str(process),
        "SLURM_LOCALID": str(process),
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_COORDINATOR_BIND_ADDRESS": own_service or coordinator,
        "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(first, first + devices))),
        "JAX_PLATFORMS": environment.get("JAX_PLATFORMS") or "cpu",
        "XLA_FLAGS": " ".join([*flags, f"{_COUNT}={devices}"]),
        "PJRT_NPROC": str(threads),
        "PYTHONUNBUFFERED": "1",
        LAUNCHER: str(os.getpid()),
        **({"JAX_ENABLE_RECOVERABILITY": "1"} if keeps_going else {}),
        **further,
    }


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that processes inherit."""
    return {name: value for name, value in environment.items() if not name.startswith(_OPEN_MPI)}
