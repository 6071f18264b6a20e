"""Makes the communicators of a program's groups of devices before XLA asks for them.

XLA's request for a communicator names the group's first device and the rank of the requesting device, but not the other
members of the group. So before a program runs for the first time, this module reads the groups from the program's text
and runs a sum over each new group. While this sum runs, XLA can request no other group with the same first device. XLA
keeps the communicator afterwards. A request at any other time is an error.
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
from jaxcomm.backend.hlo_groups import groups_in
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.cpu import CPU

Devices = Sequence[Any]

_lock = threading.Lock()  # guards the following variables
_locks: dict[int, threading.RLock] = {}  # by first device: groups with the same first device are made one by one
_made: set[tuple[int, ...]] = set()  # the groups that have communicators, each as JAX's ids of its devices
_client: Any = None  # the client that has the communicators


def make_known(executable: Any, devices: Devices) -> None:
    """Makes the communicators of a program's groups that have devices of this process.

    All processes of a group call this in the same order, because they run their programs in the same order.

    Args:
      executable: XLA's loaded executable of the program.
      devices: the devices that the program runs on, in the order of the program's device assignment.

    Raises:
      JaxcommError: the processes of the job cannot be connected, or the result of a group's sum is wrong.
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
    """Calls `run` unless these groups have communicators. `run` must use no other groups with devices of this process.

    After `run` the groups have communicators.
    """
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
    """Calls `run` on a thread without the user's contexts (meshes, defaults). Settings of `jax.config` still apply."""
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
    """Runs a sum over the devices of a group."""
    mesh = Mesh(np.array(group), ("devices",))
    total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(_ones(mesh))
    _check(total, len(group))


def _sums_alone(here: Devices) -> None:
    """Runs a sum over each of these devices alone.

    XLA omits such sums from a program of one device, so this program has at least two devices.
    """
    both = here if len(here) > 1 else [*here, next(device for device in here[0].client.devices() if device not in here)]
    mesh = Mesh(np.array(both).reshape(-1, 1), ("devices", "alone"))
    spec = PartitionSpec("devices")
    body = jax.shard_map(partial(jax.lax.psum, axis_name="alone"), mesh=mesh, in_specs=spec, out_specs=spec)
    _check(jax.jit(body)(_ones(mesh)), 1)


def _ones(mesh: Mesh) -> jax.Array:
    """An array with a one for each device."""
    sharding = NamedSharding(mesh, PartitionSpec("devices"))
    return jax.make_array_from_callback((mesh.size,), sharding, lambda index: np.ones(mesh.size, np.int32)[index])


def _check(total: jax.Array, expected: int) -> None:
    found = [int(np.asarray(shard.data).reshape(-1)[0]) for shard in total.addressable_shards]
    if any(value != expected for value in found):
        raise JaxcommError(f"a first sum of {expected} ones is {found}.\n  Cure: report this.")
