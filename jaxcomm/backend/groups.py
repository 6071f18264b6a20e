"""The groups of devices for whose communicators XLA asks, known before it does.

XLA asks for a communicator by the group's first device and the asking device's rank, which does not say who else
belongs to it. So before a program runs for the first time, its groups are read from its text, and each that is new runs
a sum of its own: while that runs, XLA can ask for this group only, of those that have its first device, and it keeps
the communicator for good. XLA makes no sum of a group of one device, so for such a group it asks while the program
runs, and the next group waits for that.
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

_lock = threading.Lock()  # of what follows
_locks: dict[int, Any] = {}  # of one group at a time, by the number of its first device
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
    for positions in groups_in(jax_compat.program_text(executable), len(devices)):
        group = tuple(devices[position] for position in positions)
        if all(device.process_index != jax.process_index() for device in group):
            continue
        numbers = tuple(device.id for device in group)
        with _lock:
            lock = _locks.setdefault(numbers[0], threading.RLock())
        with lock:
            if numbers in _made:
                continue
            members.connected()
            _expect(group)
            if len(group) == 1:
                asks_later = True
            else:
                _make(group)
                if numbers[:1] in _made:
                    _expect(group[:1])
            _made.add(numbers)
    return asks_later


def _make(group: Sequence[Any]) -> None:
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


def _expect(devices: Sequence[Any]) -> None:
    CPU.call(
        "backend_expect",
        (ctypes.c_uint32 * len(devices))(*(device.id for device in devices)),
        (ctypes.c_uint32 * len(devices))(*(device.process_index for device in devices)),
        (ctypes.c_int64 * 1)(len(devices)),
        1,
    )


def _sum_of_ones(group: Sequence[Any]) -> int:
    mesh = Mesh(np.array(group), ("devices",))
    with jax_compat.without_first_execution(), jax.transfer_guard("allow"):
        ones = jax.make_array_from_callback(
            (len(group),), NamedSharding(mesh, PartitionSpec("devices")), lambda _: np.ones(1, np.int32)
        )
        total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(ones)
        return int(np.asarray(total.addressable_data(0)))
