"""The numbers that a process's own runtime, such as CUDA, gives to its devices."""

from __future__ import annotations

import json

import jax

from jaxcomm.distributed import store


def hardware_number(device: jax.Device) -> int:
    """The number of a device, such as a GPU, within the process that it belongs to.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized, or the process has not published it after five minutes.
    """
    if device.process_index == jax.process_index():
        number: int = device.local_hardware_id
        return number
    return _hardware_numbers(device.process_index, device.platform)[str(device.id)]


@store.cached
def _hardware_numbers(process: int, platform: str) -> dict[str, int]:
    here = {device.id: device.local_hardware_id for device in jax.local_devices(backend=platform)}
    store.publish(f"{platform}/{jax.process_index()}", json.dumps(here))
    numbers: dict[str, int] = json.loads(
        store.lookup(f"{platform}/{process}", f"process {process} has not published its devices")
    )
    return numbers
