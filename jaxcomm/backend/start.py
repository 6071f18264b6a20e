"""Runs when JAX creates its CPU client: passes the core's functions to `jaxlib_variables.LIBRARY`, and connects."""

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
from jaxcomm.collectives import active_plan, replacement
from jaxcomm.distributed import forks, store
from jaxcomm.distributed.connect import members
from jaxcomm.ffi.cpu import CPU

_CONNECT_AT_EXIT_S: Final = 5.0  # time that an ending process gives the other processes to connect


def start() -> None:
    """`LIBRARY` calls this while JAX makes its client, so nothing here may wait for JAX or for other processes."""
    try:
        if jax_compat.cpu_devices() > 1 and not {"PJRT_NPROC", "NPROC"} & os.environ.keys():
            os.environ["PJRT_NPROC"] = str(jaxlib_variables.THREADS)
        active_plan.start()
        plans.start()
        library = ctypes.CDLL(str(jaxlib_variables.LIBRARY))
        library.jaxcomm_backend_take.argtypes = [ctypes.c_void_p]
        table = ctypes.c_void_p()
        CPU.call("backend_table", ctypes.byref(table))
        replacement.replace_types({"float16"})  # XLA does not pass float16 to the library
        _see_programs()
        members.before_client()
        library.jaxcomm_backend_take(table)
        # All processes connect now, so a program on some devices need not wait for processes that run no program.
        thread = threading.Thread(target=_connect, name="jaxcomm connects", daemon=True)
        thread.start()
        forks.run_at_exit(lambda: _end(thread))
    except Exception:  # no exception may escape, because the caller is not Python
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
    with contextlib.suppress(Exception):  # the first program that needs the connections raises the error again
        plans.connected()


def _end(thread: threading.Thread) -> None:
    """Ends the connecting thread before this process ends; first gives the other processes time to connect."""
    thread.join(_CONNECT_AT_EXIT_S)
    if thread.is_alive():
        store.stop_waiting()
        thread.join(_CONNECT_AT_EXIT_S)
