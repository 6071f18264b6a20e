"""JAX's coordination service in a process of its own, so that it outlives every process of the job."""

from __future__ import annotations

from typing import Any

from jaxlib import _jax

HEARTBEAT_S = 100  # JAX's default
_SHUTDOWN_S = 60


def serve(address: str, processes: int, heartbeat_timeout_s: int) -> Any:
    """Starts the service for a job whose processes may end and start again. It runs until the result is deleted.

    Args:
      address: "host:port" at which the service listens.
      processes: the number of processes in the job.
      heartbeat_timeout_s: time without heartbeats after which a process counts as dead. Each process sends two in the
        time that it passes to `jax.distributed.initialize`.
    """
    return _jax.get_distributed_runtime_service(
        address, processes, heartbeat_timeout=heartbeat_timeout_s, shutdown_timeout=_SHUTDOWN_S, recoverable=True
    )


def report_end(address: str, process: int) -> None:
    """Tells the service that a process has ended. Without this the service waits for the process's heartbeats.

    A client registers in place of the process, as if it were a new start of it, and leaves.
    """
    client = _jax.get_distributed_runtime_client(address, process, init_timeout=10, heartbeat_timeout=HEARTBEAT_S)
    client.connect()
    client.shutdown()
