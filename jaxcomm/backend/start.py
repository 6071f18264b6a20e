"""What runs when JAX makes its CPU client: the library gets the core's functions, and the processes are connected."""

from __future__ import annotations

import ctypes
import sys
import threading
import traceback

from jaxcomm import choice, jax_compat
from jaxcomm.backend import environment, groups
from jaxcomm.distributed import members
from jaxcomm.ffi.cpu import CPU


def start() -> None:
    """Called by the library, inside JAX's making of its client: nothing here may wait for JAX or for other processes."""
    try:
        library = ctypes.CDLL(str(environment.LIBRARY))
        library.jaxcomm_backend_take.argtypes = [ctypes.c_void_p]
        CPU.call("backend_lists", *choice.bounds_without_plan(), 0, None, b"", 0)
        jax_compat.before_first_execution(groups.make_known)
        table = ctypes.c_void_p()
        CPU.call("backend_table", ctypes.byref(table))
        library.jaxcomm_backend_take(table)
        # A program over some of the devices does not wait for processes that have yet to run one.
        threading.Thread(target=_connect, name="jaxcomm connects", daemon=True).start()
    except Exception:  # of which the caller, which is no Python, knows nothing
        traceback.print_exc()
        print("jaxcomm: collectives between processes will fail.\n  Cure: unset JAXCOMM_EVERY_COLLECTIVE.", file=sys.stderr)


def _connect() -> None:
    try:
        members.connected()
    except Exception:  # the first program that needs the connections raises it
        pass
