"""The processes of a job that `jax.distributed` started: a name that they share, their hosts, their devices' numbers.

Each tells the others of itself when it first asks; what it asks, it asks once.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import uuid
from pathlib import Path
from typing import Any

import jax

from jaxcomm import jax_compat
from jaxcomm.errors import JaxcommError

_PATIENCE_S = 300  # for another process to come as far


@functools.cache
def job() -> str:
    """A name that all processes of the job have in common, and no other job has.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized.
    """
    tell("job", uuid.uuid4().hex)
    return hear("job", "nobody has named the job")


@functools.cache
def host(process: int) -> str:
    """Which host a process runs on; on another one, or where it has another /dev/shm to meet in, another name.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized, or the process has not told it after five minutes.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    tell(f"host/{jax.process_index()}", f"{socket.gethostname()} {boot} {os.stat('/dev/shm').st_dev}")
    return hear(f"host/{process}", f"process {process} has not told where it runs")


def hardware_number(device: jax.Device) -> int:
    """The number that a device, such as a GPU, has in its process, whichever that is.

    Raises:
      JaxcommError: as `host`.
    """
    if device.process_index == jax.process_index():
        number: int = device.local_hardware_id
        return number
    return _hardware_numbers(device.process_index, device.platform)[str(device.id)]


@functools.cache
def _hardware_numbers(process: int, platform: str) -> dict[str, int]:
    here = {device.id: device.local_hardware_id for device in jax.local_devices(backend=platform)}
    tell(f"{platform}/{jax.process_index()}", json.dumps(here))
    numbers: dict[str, int] = json.loads(hear(f"{platform}/{process}", f"process {process} has not told its devices"))
    return numbers


def tell(key: str, value: str) -> None:
    """Tells the other processes something, once; what is told of the same key later counts no more."""
    try:
        _store().key_value_set(f"jaxcomm/{key}", value)
    except jax.errors.JaxRuntimeError as error:
        if "ALREADY_EXISTS" not in str(error):
            raise


def hear(key: str, otherwise: str) -> str:
    """What a process has told, or tells within five minutes.

    Raises:
      JaxcommError: it has not, which `otherwise` says in words, or `jax.distributed` has not been initialized.
    """
    try:
        value: str = _store().blocking_key_value_get(f"jaxcomm/{key}", _PATIENCE_S * 1000)
    except jax.errors.JaxRuntimeError as error:
        raise JaxcommError(
            f"{otherwise} after {_PATIENCE_S} s ({str(error).splitlines()[0]}).\n"
            "  Cure: run the same steps in all processes, in one order."
        ) from error
    return value


def _store() -> Any:
    try:
        return jax_compat.key_value_store()
    except LookupError as error:
        raise JaxcommError(
            f"ranks live in several processes, but {error}.\n  Cure: call jax.distributed.initialize in each of them."
        ) from error
