"""Runs when JAX makes its CPU client: the library gets the core's functions, and the processes are connected."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import traceback
from typing import Final

from jaxcomm import jax_compat
from jaxcomm.backend import groups, jaxlib_variables, plans
from jaxcomm.collectives import communicator, replacement
from jaxcomm.distributed import forks, store
from jaxcomm.ffi.cpu import CPU

_CONNECT_AT_EXIT_S: Final = 5.0  # the time that a process which ends gives to processes that connect


def start() -> None:
    """Called by the library while JAX makes its client: nothing here may wait for JAX or for other processes."""
    try:
        if jax_compat.cpu_devices() > 1 and not {"PJRT_NPROC", "NPROC"} & os.environ.keys():
            os.environ["PJRT_NPROC"] = str(jaxlib_variables.THREADS)
        communicator.start()
        plans.start()
        library = ctypes.CDLL(str(jaxlib_variables.LIBRARY))
        library.jaxcomm_backend_take.argtypes = [ctypes.c_void_p]
        table = ctypes.c_void_p()
        CPU.call("backend_table", ctypes.byref(table))
        replacement.replace_types({"float16"})  # which XLA does not pass on
        _see_programs()
        library.jaxcomm_backend_take(table)
        # A program over some of the devices does not wait for processes that have yet to run one.
        thread = threading.Thread(target=_connect, name="jaxcomm connects", daemon=True)
        thread.start()
        forks.run_at_exit(lambda: _end(thread))
    except Exception:  # the caller is no Python
        traceback.print_exc()
        print(
            "jaxcomm: collectives between processes will fail.\n"
            "  Cure: mend what the error above says, or unset JAXCOMM_EVERY_COLLECTIVE.",
            file=sys.stderr,
        )


@functools.cache
def _see_programs() -> None:
    jax_compat.before_first_execution(groups.make_known)


def _connect() -> None:
    with contextlib.suppress(Exception):  # the first program that needs the connections raises it
        plans.connected()


def _end(thread: threading.Thread) -> None:
    """Has the thread end before the process does: the others may be about to come."""
    thread.join(_CONNECT_AT_EXIT_S)
    if thread.is_alive():
        store.stop_waiting()
        thread.join(_CONNECT_AT_EXIT_S)
