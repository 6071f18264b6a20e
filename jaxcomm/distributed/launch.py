"""Commands and environments of processes on this machine, for which `jax.distributed.initialize()` needs no arguments.

JAX reads what SLURM sets for the steps of its jobs, in all supported versions alike; so this sets the same.
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

from jaxcomm.environment import TRANSPORT
from jaxcomm.errors import JaxcommError

_COUNT = "--xla_force_host_platform_device_count"
_PORTS = range(20000, 32768)  # below those that Linux gives to connections
_OPEN_MPI = ("OMPI_COMM_WORLD_", "OMPI_MCA_orte_hnp_uri")  # JAX would ask Open MPI first


def command(words: Sequence[str], *, is_module: bool = False) -> list[str]:
    """The program of each process: a Python script, a Python module, or another one.

    Args:
      words: the script's path, the module's name or the program, and its arguments.
      is_module: the first word is a module.

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
    """ "host:port" on this machine that no program listens on.

    Not one of the ports that the kernel gives to connections: until the coordinator listens, one could get it.
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
    transport: str | None,
    environment: Mapping[str, str],
    keeps_going: bool = False,
    further: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """The environment variables that a process gets beside those that are there, or in their place.

    Args:
      process: its number.
      processes: of the job.
      devices: CPU devices of each process; where JAX_PLATFORMS names GPUs, its number of GPUs.
      coordinator: "host:port".
      transport: for JAXCOMM_TRANSPORT, or None to leave it.
      environment: the variables that are set.
      keeps_going: the others may go on when a process dies.
      further: variables of the caller's, alike in all processes.
    """
    flags = re.sub(rf"{_COUNT}=\S*", "", environment.get("XLA_FLAGS", "")).split()
    # XLA:CPU may stop for ever with fewer than two threads a device in its pool.
    threads = max(2 * devices, os.cpu_count() or 1, int(environment.get("PJRT_NPROC") or 0))
    first = process * devices
    return {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": str(processes),
        "SLURM_PROCID": str(process),
        "SLURM_LOCALID": str(process),
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_COORDINATOR_BIND_ADDRESS": coordinator,
        "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(first, first + devices))),
        "JAX_PLATFORMS": environment.get("JAX_PLATFORMS") or "cpu",
        "XLA_FLAGS": " ".join([*flags, f"{_COUNT}={devices}"]),
        "PJRT_NPROC": str(threads),
        "PYTHONUNBUFFERED": "1",
        **({} if transport is None else {TRANSPORT: transport}),
        **({"JAX_ENABLE_RECOVERABILITY": "1"} if keeps_going else {}),
        **further,
    }


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that all processes keep."""
    return {name: value for name, value in environment.items() if not name.startswith(_OPEN_MPI)}
