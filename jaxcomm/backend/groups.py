"""The groups of devices for whose communicators XLA asks, known before it does.

XLA asks for a communicator by the group's first device and the asking device's rank, which does not say who else
belongs to it. So before a program runs for the first time, its groups are read from its text, and each that is new runs
a sum of its own: while that runs, XLA can ask for no other group with the same first device, and it keeps the
communicator for good. At any other time such a question is an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcomm import jax_compat
from jaxcomm.backend import plans
from jaxcomm.backend.collective_text import groups_in
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.cpu import CPU

Devices = Sequence[Any]

_lock = threading.Lock()  # of what follows
_locks: dict[int, threading.RLock] = {}  # of one group at a time, by the number of its first device
_made: set[tuple[int, ...]] = set()  # by the numbers of their devices
_client: Any = None  # the client that has the communicators


def make_known(executable: Any, devices: Devices) -> None:
    """Makes the communicators of a program's groups that have devices of this process.

    All processes of a group come here in one order, as they run their programs in one order.

    Args:
      executable: XLA's, loaded.
      devices: that it runs on, in the order of its assignment.

    Raises:
      JaxcommError: the processes of the job cannot be connected, or a group's own sum is wrong.
    """
    global _client
    if devices[0].platform != "cpu":
        return
    with _lock:
        if _client is not devices[0].client:
            _made.clear()
            _client = devices[0].client
    here = [device for device in devices if device.process_index == jax.process_index()]
    for positions, kinds in groups_in(jax_compat.program_text(executable), len(devices)).items():
        group = [devices[position] for position in positions]
        if len(group) > 1 and not {*here}.isdisjoint(group):
            _make([group], partial(_sum, group))
            if "all-reduce" in kinds:
                plans.check_sizes([len(group)])
            if len({device.process_index for device in group}) == jax.process_count():
                plans.begin_auto()
        elif {*group} <= {*here}:
            _make([[device] for device in here], partial(_sums_alone, here))


def _numbers(devices: Devices) -> tuple[int, ...]:
    return tuple(device.id for device in devices)


def _make(groups: Sequence[Devices], run: Callable[[], None]) -> None:
    """Runs a program that has these groups, and no others with devices of this process, unless they are made."""
    with contextlib.ExitStack() as locks:
        for first in sorted(group[0].id for group in groups):
            with _lock:
                lock = _locks.setdefault(first, threading.RLock())
            locks.enter_context(lock)
        if all(_numbers(group) in _made for group in groups):
            return
        plans.connected()
        for group in groups:
            CPU.call(
                "backend_expect",
                (ctypes.c_uint32 * len(group))(*_numbers(group)),
                (ctypes.c_uint32 * len(group))(*(device.process_index for device in group)),
                len(group),
            )
            locks.callback(CPU.call, "backend_forget", group[0].id)
        _on_a_thread(run)
        _made.update(map(_numbers, groups))


def _on_a_thread(run: Callable[[], None]) -> None:
    """Runs it where none of the user's contexts (meshes, defaults) holds; those of `jax.config` still do."""
    failure: list[BaseException] = []

    def catch() -> None:
        try:
            with jax_compat.without_first_execution(), jax.transfer_guard("allow"):
                run()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=catch, name="jaxcomm makes a group")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]


def _sum(group: Devices) -> None:
    """A sum over the devices of a group."""
    mesh = Mesh(np.array(group), ("devices",))
    total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(_ones(mesh))
    _check(total, len(group))


def _sums_alone(here: Devices) -> None:
    """A sum over each of these devices by itself. A sum in a program of one device is left out, so there are two."""
    both = here if len(here) > 1 else [*here, next(device for device in here[0].client.devices() if device not in here)]
    mesh = Mesh(np.array(both).reshape(-1, 1), ("devices", "alone"))
    spec = PartitionSpec("devices")
    body = jax.shard_map(partial(jax.lax.psum, axis_name="alone"), mesh=mesh, in_specs=spec, out_specs=spec)
    _check(jax.jit(body)(_ones(mesh)), 1)


def _ones(mesh: Mesh) -> jax.Array:
    """A one for each device."""
    sharding = NamedSharding(mesh, PartitionSpec("devices"))
    return jax.make_array_from_callback((mesh.size,), sharding, lambda index: np.ones(mesh.size, np.int32)[index])


def _check(total: jax.Array, expected: int) -> None:
    found = [int(np.asarray(shard.data).reshape(-1)[0]) for shard in total.addressable_shards]
    if any(value != expected for value in found):
        raise JaxcommError(f"a first sum of {expected} ones is {found}.\n  Cure: report this.")
