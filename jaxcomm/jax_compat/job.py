"""The processes of `jax.distributed`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import jax
from jax._src import distributed
from jax.experimental import multihost_utils

_T = TypeVar("_T")
_ATTEMPTS: Final = 5
_own: tuple[Any, int] | None = None  # a client, and this process's incarnation as the client reported it


def spans_processes() -> bool:
    """Whether `jax.distributed` has been initialized for several processes."""
    several: bool = distributed.global_state.client is not None and distributed.global_state.num_processes > 1
    return several


def is_recoverable() -> bool:
    """Whether JAX's fault tolerance is on: processes may end and be started again while the others go on."""
    is_on: bool = jax.config.jax_enable_recoverability  # type: ignore[attr-defined]  # known at run time only
    return is_on


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


def place_in_job() -> tuple[str, int, int]:
    """The coordinator's address, this process's number, and the number of processes; ("", 0, 1) outside of a job."""
    state = distributed.global_state
    return state.coordinator_address or "", state.process_id or 0, state.num_processes or 1


def own_incarnation() -> int:
    """The number that the coordination service gave to this start of this process; 0 without `jax.distributed`.

    The service is asked once, because later it may return the number of a newer start of this process.
    """
    global _own
    state = distributed.global_state
    if state.client is None:
        return 0
    if _own is None or _own[0] is not state.client:
        _own = state.client, state.client.get_live_nodes([state.process_id])[state.process_id]
    return _own[1]


def follow_live_devices(enter: Callable[[], _T], leave: Callable[[_T, dict[int, int]], bool]) -> None:
    """Calls `enter` before and `leave` after each barrier of `live_devices` over all CPU devices of several processes.

    Args:
      enter: its result is passed to `leave`.
      leave: takes the result of `enter` and the incarnation of each live process. Returns whether the live processes
        are connected; if not, they pass the barrier again, at most `_ATTEMPTS` times with the same live processes.
    """
    barrier = multihost_utils._live_devices

    def live_devices(client: Any, devices: Any) -> Any:
        processes = {device.process_index for device in devices}
        if len(processes) < max(2, jax.process_count()) or devices[0].platform != "cpu":
            return barrier(client, devices)
        if isinstance(leaving := sys.exception(), SystemExit):
            raise leaving  # the other processes must not wait for this one
        attempts = 0
        before: dict[int, int] = {}
        while True:
            entered = enter()
            live = barrier(client, devices)
            now = {device.process_index: incarnation for device, incarnation in live.items()}
            attempts, before = attempts + 1 if now == before else 1, now
            if leave(entered, now) or attempts == _ATTEMPTS:
                return live

    multihost_utils._live_devices = live_devices


def forget_devices() -> None:
    """Allows process 0 to publish all processes' devices again. Call it before JAX makes its CPU client.

    An earlier start of process 0 has published the devices, and JAX does not overwrite published devices.
    """
    if distributed.global_state.process_id == 0:
        key_value_store().key_value_delete("cpu:global_topology/cpu")
