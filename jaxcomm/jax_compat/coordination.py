"""JAX's coordination service in a process of its own, so that it outlives every process of the job."""

from __future__ import annotations

from typing import Any, Final

import jax
from jaxlib import _jax

from jaxcomm.jax_compat.job import key_value_store, own_incarnation

HEARTBEAT_S = 100  # JAX's default
_SHUTDOWN_S = 60
_LONGEST_START_S: Final = 7 * 86400  # time limit for all processes of a job to register


def serve(address: str, processes: int, heartbeat_timeout_s: int) -> Any:
    """Starts the service for a job whose processes may end and start again. Deleting the result ends the service.

    Args:
      address: "host:port" at which the service listens.
      processes: the number of processes in the job.
      heartbeat_timeout_s: time without heartbeats after which a process counts as dead. A process sends two heartbeats
        within the heartbeat timeout that it passes to `jax.distributed.initialize`.
    """
    return _jax.get_distributed_runtime_service(
        address, processes, heartbeat_timeout=heartbeat_timeout_s, shutdown_timeout=_SHUTDOWN_S, recoverable=True
    )


def report_end(address: str, process: int, key: str, value: str) -> None:
    """Reports to the service that a process has ended. Without a report, the service waits for missing heartbeats.

    To report the end, a client registers as a new start of the process, sets a value in the key-value store, and
    leaves. JAX ends the calling process if the process was started again meanwhile.
    """
    client = _jax.get_distributed_runtime_client(address, process, init_timeout=10, heartbeat_timeout=HEARTBEAT_S)
    client.connect()
    client.key_value_set(key, value, allow_overwrite=True)
    client.shutdown()


def register_absent(address: str, processes: int, process: int, devices: int, key: str, value: str) -> None:
    """Registers in place of a process that is started later, publishes that process's CPU devices, and leaves.

    JAX ends the calling process if the absent process itself registers meanwhile.

    Args:
      address: "host:port" of the service.
      processes: the number of processes in the job.
      process: the number of the absent process.
      devices: the number of CPU devices that the process will have.
      key: a key of the key-value store. It is set before the devices are published.
      value: the key's value.
    """
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_enable_recoverability", True)
    jax.distributed.initialize(address, processes, process, initialization_timeout=_LONGEST_START_S)
    incarnation = own_incarnation()
    key_value_store().key_value_set(key, value)
    jax.local_devices()
    if key_value_store().get_live_nodes([process]) == {process: incarnation}:  # else the process itself has registered
        jax.distributed.shutdown()
