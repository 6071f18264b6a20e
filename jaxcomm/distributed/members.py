"""The connections of this process's core with the other processes of the job."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Sequence
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcomm import ffi
from jaxcomm.distributed import bootstrap, forks
from jaxcomm.distributed.membership import Membership
from jaxcomm.distributed.settings import MOST_RAILS, NamedRail
from jaxcomm.distributed.udp_paths import UdpPath
from jaxcomm.ffi.cpu import CPU
from jaxcomm.ffi.shares import SharesFrom
from jaxcomm.log import printable

_POLL_S: Final = 0.002


def connected(
    named: Sequence[NamedRail] = (), planned: Sequence[SharesFrom] = (), planned_transport: str = ""
) -> Membership:
    """The processes that this one is connected with, which the first call does. Args as for `bootstrap.connect`.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized, or not all processes come.
    """
    return bootstrap.connect(Connections, named, planned, planned_transport)


def leave_last_job() -> None:
    """Leaves the job that this process was connected in, if `jax.distributed` has been shut down since.

    Raises:
      JaxcommError: a call between its processes has not ended.
    """
    bootstrap.close_last()


class Connections:
    """The core's transports, which `bootstrap` connects."""

    def __init__(self) -> None:
        """Opens the job in the core; once in a generation."""
        self._processes = jax.process_count()  # JAX is not to be asked by a thread of ours
        CPU.call("job_open", jax.process_index(), self._processes)
        self._at_exit: Callable[[], None] = _leave  # once it is registered, what takes it back

    def shm_file(self) -> tuple[int, int]:
        """The descriptor of this process's shared-memory file, and the file's number."""
        fd, nonce = ctypes.c_int(), ctypes.c_uint64()
        CPU.call("job_shm_file", ctypes.byref(fd), ctypes.byref(nonce))
        return fd.value, nonce.value

    def add_shm(self, process: int, fd: int, nonce: int) -> None:
        """Takes the descriptor of another process's file, which must have this number."""
        CPU.call("job_add_shm", process, fd, nonce)

    def open_rails(self, kind: str, names: list[str]) -> None:
        """Opens the rails of these names, all "tcp" or "udp"."""
        CPU.call("job_open_rails", kind.encode(), os.fsencode("".join(f"{name}\n" for name in names)))

    def set_rails(
        self, process: int, connected: list[int], down: list[int], shares: list[tuple[int, list[int]]]
    ) -> None:
        """Sets the rails to a process, those that are connected and those that are down, and every rail's shares."""
        lows = [low for low, _ in shares]
        units = [unit for _, each in shares for unit in each]
        CPU.call(
            "job_set_rails",
            process,
            (ctypes.c_uint32 * len(connected))(*connected),
            len(connected),
            (ctypes.c_uint32 * len(down))(*down),
            len(down),
            (ctypes.c_int64 * len(lows))(*lows),
            (ctypes.c_uint32 * len(units))(*units),
            len(lows),
            len(units) // len(lows),
        )

    def add_tcp(self, process: int, rail: int, fd: int) -> None:
        """Takes a connected, authenticated socket."""
        CPU.call("job_add_tcp", process, rail, fd)

    def add_udp(self, process: int, rail: int, path: UdpPath) -> None:
        """Takes the sockets of a path."""
        CPU.call("job_add_udp", process, rail, *_taken(path))

    def lost_rails(self) -> list[tuple[int, int, int]]:
        """The rails that are cut and can be restored: process, number of the rail, how often it was cut so far."""
        most = self._processes * MOST_RAILS
        triples, count = (ctypes.c_uint32 * 3 * most)(), ctypes.c_int64()
        CPU.call("job_lost_rails", triples, most, ctypes.byref(count))
        return [(process, rail, cuts) for process, rail, cuts in triples[: count.value]]

    def restore_tcp(self, process: int, rail: int, cuts: int, fd: int) -> None:
        """Takes a connected, authenticated socket for one of them, or closes it."""
        CPU.call("job_restore_tcp", process, rail, cuts, fd)

    def restore_udp(self, process: int, rail: int, cuts: int, path: UdpPath) -> None:
        """The same with the sockets of a path."""
        CPU.call("job_restore_udp", process, rail, cuts, *_taken(path))

    def start(self, hosts: Sequence[int], host_names: Sequence[str]) -> None:
        """All others have been added; the number of each process's host, and its name."""
        names = "".join(f"{printable(name)}\n" for name in host_names)
        CPU.call("job_start", (ctypes.c_uint32 * len(hosts))(*hosts), names.encode(), len(hosts))
        self._at_exit = forks.run_at_exit(_leave)

    def close(self) -> None:
        """Leaves the job as at the end of the process, and releases the connections."""
        atexit.unregister(self._at_exit)
        _leave()
        CPU.call("job_reset")


def _taken(path: UdpPath) -> tuple[int, int, bytes, bytes, int, int]:
    """A path as the core takes it, which owns its sockets from now on."""
    return path.connection.detach(), path.socket.detach(), *path[2:]


def _leave() -> None:
    """Ends this process's part of the job: its calls first, then what is on its way, then a goodbye."""
    try:
        _finish_calls(time.monotonic() + ffi.deadline())
    finally:
        CPU.call("job_close")


def _finish_calls(until: float) -> None:
    """Waits for dispatched steps, also where the program drops their results, and for calls that have begun.

    JAX's CPU client runs what one thread dispatches in its order, and what has several devices in one order for all
    threads. So a step that is dispatched now ends last.
    """
    with contextlib.suppress(Exception):  # of steps that failed, or a JAX that ends
        devices = jax.local_devices(backend="cpu")
        mesh = Mesh(np.array(devices), ("d",))
        last = [jax.device_put(np.zeros(()), device) for device in devices]
        last.append(jax.device_put(np.zeros(len(devices)), NamedSharding(mesh, PartitionSpec("d"))))
        last = [*map(jnp.negative, last), *jax.live_arrays()]
        while time.monotonic() < until and not all(array.is_deleted() or array.is_ready() for array in last):
            time.sleep(_POLL_S)
    awaits = ctypes.c_int(1)
    while time.monotonic() < until:
        CPU.call("job_awaits", ctypes.byref(awaits))
        if not awaits.value:
            break
        time.sleep(_POLL_S)
