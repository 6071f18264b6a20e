"""The core's part in a job: it takes over the connections with other processes, and leaves the job at process exit."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcomm import ffi
from jaxcomm.distributed import forks
from jaxcomm.distributed.connect.fabric_paths import FabricPath
from jaxcomm.distributed.connect.path_keys import CipherKeys
from jaxcomm.distributed.connect.udp_paths import UdpPath
from jaxcomm.distributed.rails.named_rails import MOST_RAILS
from jaxcomm.distributed.rails.rail_ends import FabricEnd
from jaxcomm.environment import LAUNCHER, udp_priorities
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.arguments import ConnectionKeys, FabricConnection, RailShares, UdpConnection
from jaxcomm.ffi.cpu import CPU
from jaxcomm.log import printable

_POLL_S: Final = 0.002
_PR_SET_PTRACER: Final = 0x59616D61


class StepsRunning(JaxcommError):
    """Steps of the last generation have not ended, so the next generation cannot begin."""


class JobCore:
    """Implements `membership.MessageCore`: the core's transports in one generation of the job."""

    def __init__(self, *, same_job: bool = False) -> None:
        """Opens the job in the core, once per generation.

        Args:
          same_job: whether this is a later generation of the job, in which loaded executables remain valid.
        """
        self._processes = jax.process_count()  # read here, because jaxcomm's own threads must not call JAX
        CPU.call("job_open", jax.process_index(), self._processes, same_job)
        self._at_exit: Callable[[], object] = _leave  # `start` sets the function that `close` unregisters

    def shm_file(self) -> tuple[int, int]:
        """Returns the descriptor of this process's shared-memory file, and the file's number."""
        _let_launched_processes_read()
        fd, nonce = ctypes.c_int(), ctypes.c_uint64()
        CPU.call("job_shm_file", ctypes.byref(fd), ctypes.byref(nonce))
        return fd.value, nonce.value

    def add_shm(self, process: int, fd: int, nonce: int) -> None:
        """Takes the descriptor of another process's shared-memory file. Fails if the file's number is not `nonce`."""
        CPU.call("job_add_shm", process, fd, nonce)

    def open_fabric(self, rail: str, provider: str, domain: str) -> FabricEnd:
        """Opens the endpoint of a fabric rail, in a domain of libfabric's choice if `domain` is ""."""
        found = json.loads(CPU.text("job_open_fabric", rail.encode(), provider.encode(), domain.encode()))
        return FabricEnd(found["provider"], found["domain"], found["protocol"], found["address"])

    def open_rails(self, rails: list[tuple[str, str]]) -> None:
        """Opens rails, each given as its kind and its name."""
        CPU.call("job_open_rails", os.fsencode("".join(f"{kind} {name}\n" for kind, name in rails)))

    def set_rails(
        self, process: int, connected: list[int], down: list[int], shares: list[tuple[int, list[int]]]
    ) -> None:
        """Sets which rails to a process are connected and which are down, and the shares of all rails."""
        CPU.call(
            "job_set_rails",
            process,
            (ctypes.c_uint32 * len(connected))(*connected),
            len(connected),
            (ctypes.c_uint32 * len(down))(*down),
            len(down),
            _table(shares),
        )

    def set_shares(self, process: int, shares: list[tuple[int, list[int]]]) -> None:
        """Changes the rails' shares of later messages to a process."""
        CPU.call("job_set_shares", process, _table(shares))

    def check_encryption(self) -> None:
        """Raises JaxcommError if this process cannot encrypt messages."""
        CPU.call("job_check_encryption")

    def seals_by_aes(self) -> bool:
        """Returns whether this process seals packets faster by AES than by SipHash."""
        found = ctypes.c_int()
        CPU.call("job_seals_by_aes", ctypes.byref(found))
        return found.value != 0

    def add_tcp(self, process: int, rail: int, fd: int, keys: CipherKeys | None) -> None:
        """Takes a connected, authenticated socket, and the keys if its bytes are to be encrypted."""
        CPU.call("job_add_tcp", process, rail, fd, _keys(keys))

    def add_udp(self, process: int, rail: int, path: UdpPath) -> None:
        """Takes the sockets of a path."""
        CPU.call("job_add_udp", process, rail, _taken(path))

    def add_fabric(self, process: int, rail: int, path: FabricPath) -> None:
        """Takes the connection of a path."""
        CPU.call("job_add_fabric", process, rail, _taken_fabric(path))

    def lost_rails(self) -> list[tuple[int, int, int]]:
        """Returns the cut rails that can be restored: each rail's process, number, and number of cuts so far."""
        most = self._processes * MOST_RAILS
        triples, count = (ctypes.c_uint32 * 3 * most)(), ctypes.c_int64()
        CPU.call("job_lost_rails", triples, most, ctypes.byref(count))
        return [(process, rail, cuts) for process, rail, cuts in triples[: count.value]]

    def restore_tcp(self, process: int, rail: int, cuts: int, fd: int, keys: CipherKeys | None) -> None:
        """Restores a cut rail with a connected, authenticated socket. On failure closes the socket."""
        CPU.call("job_restore_tcp", process, rail, cuts, fd, _keys(keys))

    def restore_udp(self, process: int, rail: int, cuts: int, path: UdpPath) -> None:
        """Does the same as `restore_tcp` with the sockets of a path."""
        CPU.call("job_restore_udp", process, rail, cuts, _taken(path))

    def restore_fabric(self, process: int, rail: int, cuts: int, path: FabricPath) -> None:
        """Does the same as `restore_tcp` with the connection of a path. Waits up to 0.5 s for a trial of the path."""
        CPU.call("job_restore_fabric", process, rail, cuts, _taken_fabric(path))

    def start(self, hosts: Sequence[int], host_names: Sequence[str], *, has_processor_each: bool) -> None:
        """Starts the transport, after all other members were added. Takes each process's host number and name."""
        names = "".join(f"{printable(name)}\n" for name in host_names)
        numbers = (ctypes.c_uint32 * len(hosts))(*hosts)
        CPU.call("job_start", numbers, names.encode(), len(hosts), int(has_processor_each))
        self._at_exit = forks.run_at_exit(_leave)

    def close(self, *, for_change: bool = False) -> None:
        """Leaves the job in the same way as at process exit, and releases the connections.

        Raises:
          StepsRunning: with `for_change`, a step that was dispatched earlier has not ended. The step could call
            collectives in the next generation. `close` may be called again.
          JaxcommError: a call has not ended.
        """
        atexit.unregister(self._at_exit)
        if not _leave() and for_change:
            raise StepsRunning(
                "a step that was dispatched before live_devices has not ended before the deadline.\n"
                "  Cure: wait for the results of all steps inside the block."
            )
        CPU.call("job_reset")


def _table(shares: list[tuple[int, list[int]]]) -> RailShares:
    """Converts pairs (smallest call size of a range, the rails' shares in this range) to the core's type."""
    lows = np.array([low for low, _ in shares], np.int64)
    units = np.array([each for _, each in shares], np.uint32)
    return RailShares(lows, units, *units.shape)


def _taken(path: UdpPath) -> UdpConnection:
    """Converts a path to the core's type. The core owns the path's sockets from now on."""
    sockets = np.array([each.socket.detach() for each in path.sockets], np.int32)
    keys = b"".join(each.sends + each.receives for each in path.sockets)
    its = sockets, keys, len(sockets), path.seals, path.packet_bytes, path.window, udp_priorities()
    return UdpConnection(path.connection.detach(), *its)


def _keys(keys: CipherKeys | None) -> ConnectionKeys:
    """Converts the keys of a connection to the core's type."""
    return ConnectionKeys(*(keys or (None, None)))


def _taken_fabric(path: FabricPath) -> FabricConnection:
    """Converts a path to the core's type. The core owns the path's connection from now on."""
    return FabricConnection(path.connection.detach(), path.address, len(path.address), path.sends, path.receives)


def _leave() -> bool:
    """Leaves the job: waits for calls, sends pending messages, then notifies the other processes.

    Returns whether all dispatched steps have ended.
    """
    try:
        return _finish_calls(time.monotonic() + ffi.deadline())
    finally:
        CPU.call("job_close")


def _finish_calls(until: float) -> bool:
    """Waits for dispatched steps, even if the program dropped their results, and for calls that have started.

    JAX's CPU client runs the steps that one thread dispatches in the order of dispatch. It runs steps that use several
    devices in one order for all threads. So a step that is dispatched now ends after all earlier steps.
    """
    have_ended = False
    with contextlib.suppress(Exception):  # JAX may be shutting down
        devices = jax.local_devices(backend="cpu")
        last = jax.live_arrays()
        for group in [*([device] for device in devices), devices]:
            mesh = Mesh(np.array(group), ("d",))
            with jax.set_mesh(mesh):  # in place of a mesh that the program has set
                zeros = jax.device_put(np.zeros(len(group)), NamedSharding(mesh, PartitionSpec("d")))
                last.append(jnp.negative(zeros))
        while time.monotonic() < until and not have_ended:
            have_ended = all(array.is_deleted() or array.is_ready() for array in last)
            if not have_ended:
                time.sleep(_POLL_S)
    awaits = ctypes.c_int(1)
    while time.monotonic() < until:
        CPU.call("job_awaits", ctypes.byref(awaits))
        if not awaits.value:
            break
        time.sleep(_POLL_S)
    return have_ended


def _let_launched_processes_read() -> None:
    """Lets the launcher and its descendants read this process's memory, which Linux's Yama may forbid by default."""
    launcher = os.environ.get(LAUNCHER, "")
    if launcher == str(os.getppid()):  # a child process of the program inherits the variable, but has another parent
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(int(launcher)), 0, 0, 0)  # fails if Yama is absent
