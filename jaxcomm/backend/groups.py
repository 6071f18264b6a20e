"""The groups of devices for whose communicators XLA asks, known before it does.

XLA asks for a communicator by the group's first device and the asking device's rank, which does not say who else
belongs to it. So before a program runs for the first time, its groups are read from its text, and each that is new runs
a sum of its own: while that runs, XLA can ask for this group only, and it keeps the communicator for good.
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


def make_known(executable: Any, devices: Sequence[Any]) -> None:
    """Makes the communicators of a program's groups that have devices of this process.

    All processes of a group come here in one order, as they run their programs in one order.

    Args:
      executable: XLA's, loaded.
      devices: that it runs on, in the order of its assignment.

    Raises:
      JaxcommError: the processes of the job cannot be connected, or a group's own sum is wrong.
    """
    global _client
    if len({device.process_index for device in devices}) < 1 or devices[0].platform != "cpu":
        return
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
            if mine and len(group) > 1 and numbers not in _made:
                _made.add(numbers)
                try:
                    _make(group)
                except BaseException:
                    _made.discard(numbers)
                    raise


def _make(group: Sequence[Any]) -> None:
    members.connected()
    processes = [device.process_index for device in group]
    CPU.call(
        "backend_expect",
        (ctypes.c_uint32 * len(group))(*(device.id for device in group)),
        (ctypes.c_uint32 * len(group))(*processes),
        (ctypes.c_int64 * 1)(len(group)),
        1,
    )
    failure: list[BaseException] = []

    def run() -> None:
        try:
            if (total := _sum_of_ones(group)) != len(group):
                raise JaxcommError(f"the first sum over {len(group)} devices is {total}.\n  Cure: report this.")
        except BaseException as error:
            failure.append(error)

    # On a thread of its own none of the user's contexts (meshes, transfer guards, defaults) holds.
    thread = threading.Thread(target=run, name="jaxcomm makes a group")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]


def _sum_of_ones(group: Sequence[Any]) -> int:
    mesh = Mesh(np.array(group), ("devices",))
    ones = jax.make_array_from_callback(
        (len(group),), NamedSharding(mesh, PartitionSpec("devices")), lambda _: np.ones(1, np.int32)
    )
    with jax_compat.without_first_execution():
        total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(ones)
        return int(np.asarray(total.addressable_data(0)))
