"""The groups of devices for whose communicators XLA asks, known before it does.

XLA asks for a communicator by the group's first device and the asking device's rank, which does not say who else
belongs to it. So before a program runs for the first time, its groups are read from its text, and each that is new runs
a sum of its own: while that runs, XLA can ask for this group only, and it keeps the communicator for good. XLA makes no
sum of a group of one device, so for such a group it asks while the program runs, and the next group waits for that.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcomm import jax_compat
from jaxcomm.backend.collective_text import groups_in
from jaxcomm.distributed import members
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.cpu import CPU

_lock = threading.RLock()  # of one program's groups at a time
_made: set[tuple[int, ...]] = set()  # by the numbers of their devices
_client: Any = None  # whose communicators they are


def make_known(executable: Any, devices: Sequence[Any]) -> bool:
    """Makes the communicators of a program's groups that have devices of this process.

    All processes of a group come here in one order, as they run their programs in one order.

    Args:
      executable: XLA's, loaded.
      devices: that it runs on, in the order of its assignment.

    Returns:
      Whether its first execution must end before another group is made.

    Raises:
      JaxcommError: the processes of the job cannot be connected, or a group's own sum is wrong.
    """
    global _client
    if devices[0].platform != "cpu":
        return False
    asks_later = False
    with _lock:
        if _client is not devices[0].client:
            _made.clear()
            _client = devices[0].client
        wanted = [
            tuple(devices[position] for position in group)
            for group in groups_in(jax_compat.program_text(executable), len(devices))
        ]
        for group in wanted:
            numbers = tuple(device.id for device in group)
            mine = any(device.process_index == jax.process_index() for device in group)
            if not mine or numbers in _made:
                continue
            _made.add(numbers)
            try:
                if len(group) > 1:
                    _make(group)
                else:
                    members.connected()
                    CPU.call("backend_lone", *numbers)
                    asks_later = True
            except BaseException:
                _made.discard(numbers)
                raise
    return asks_later


def _make(group: Sequence[Any]) -> None:
    members.connected()
    _expect(group)
    failure: list[BaseException] = []

    def run() -> None:
        try:
            if (total := _sum_of_ones(group)) != len(group):
                raise JaxcommError(f"the first sum over {len(group)} devices is {total}.\n  Cure: report this.")
        except BaseException as error:
            failure.append(error)

    # On a thread of its own none of the user's contexts (meshes, defaults) holds; jax.config still does.
    thread = threading.Thread(target=run, name="jaxcomm makes a group")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    _expect()


def _expect(*groups: Sequence[Any]) -> None:
    devices = [device for group in groups for device in group]
    CPU.call(
        "backend_expect",
        (ctypes.c_uint32 * len(devices))(*(device.id for device in devices)),
        (ctypes.c_uint32 * len(devices))(*(device.process_index for device in devices)),
        (ctypes.c_int64 * len(groups))(*map(len, groups)),
        len(groups),
    )


def _sum_of_ones(group: Sequence[Any]) -> int:
    mesh = Mesh(np.array(group), ("devices",))
    with jax_compat.without_first_execution(), jax.transfer_guard("allow"):
        ones = jax.make_array_from_callback(
            (len(group),), NamedSharding(mesh, PartitionSpec("devices")), lambda _: np.ones(1, np.int32)
        )
        total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(ones)
        return int(np.asarray(total.addressable_data(0)))
