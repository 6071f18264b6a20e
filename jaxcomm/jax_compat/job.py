"""The processes of `jax.distributed`."""

from __future__ import annotations

from typing import Any

from jax._src import distributed


def spans_processes() -> bool:
    """Whether `jax.distributed` has been initialized for several processes."""
    several: bool = distributed.global_state.client is not None and distributed.global_state.num_processes > 1
    return several


def key_value_store() -> Any:
    """The key-value store of the job's processes, with `key_value_set` and `blocking_key_value_get`.

    Raises:
      LookupError: `jax.distributed` has not been initialized.
    """
    if distributed.global_state.client is None:
        raise LookupError("jax.distributed has not been initialized")
    return distributed.global_state.client


def coordinator_address() -> str:
    """ "host:port" of the coordinator that `jax.distributed` was initialized with.

    Raises:
      LookupError: `jax.distributed` has not been initialized.
    """
    if distributed.global_state.coordinator_address is None:
        raise LookupError("jax.distributed has not been initialized")
    return distributed.global_state.coordinator_address
