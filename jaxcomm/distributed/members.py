"""The connections of this process's core with the other processes of the job."""

from __future__ import annotations

import atexit
import contextlib
import ctypes

import jax

from jaxcomm.distributed import bootstrap
from jaxcomm.ffi.cpu import CPU


def connected() -> bootstrap.Membership:
    """The processes that this one is connected with, which the first call does.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized, or not all processes come.
    """
    return bootstrap.connect(Connections)


class Connections:
    """What `bootstrap` connects: the core's transports."""

    def __init__(self) -> None:
        """Makes them; the core has them once in a process."""
        CPU.call("job_open", jax.process_index(), jax.process_count())

    def shm_file(self) -> tuple[int, int]:
        """The descriptor of this process's shared-memory file, and the number that it bears."""
        fd, nonce = ctypes.c_int(), ctypes.c_uint64()
        CPU.call("job_shm_file", ctypes.byref(fd), ctypes.byref(nonce))
        return fd.value, nonce.value

    def add_shm(self, process: int, fd: int, nonce: int) -> None:
        """Takes the descriptor of another process's file, which must bear this number."""
        CPU.call("job_add_shm", process, fd, nonce)

    def add_tcp(self, process: int, fd: int) -> None:
        """Takes a connected, authenticated socket."""
        CPU.call("job_add_tcp", process, fd)

    def start(self) -> None:
        """All others have been added."""
        CPU.call("job_start")
        atexit.register(_leave)


def _leave() -> None:
    """Ends this process's part of the job: its calls first, then what is on its way, then a goodbye."""
    for array in jax.live_arrays():
        with contextlib.suppress(Exception):  # of steps that failed, or arrays that were donated
            array.block_until_ready()
    CPU.call("job_close")
