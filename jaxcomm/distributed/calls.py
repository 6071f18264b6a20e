"""Calls between processes that JAX knows nothing of: lists of messages on plain memory, for measuring and agreeing."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxcomm.distributed import members, store
from jaxcomm.ffi.cpu import CPU

_NUMBERS = 0x6A61_7863_0000_0000  # of such calls; a communicator's is a hash


def run(call: str, number: int, messages: str, ranks: Sequence[tuple[int, int]], values: NDArray[Any]) -> float:
    """Runs a list of messages, whose sums are of bytes, and waits for its end.

    Args:
      call: for errors: "an exchange of ranks 0 and 3".
      number: alike in all processes of the call, and no other call's.
      messages: the name of the list, as `jaxcomm.ffi.register_messages` returns it, or "all_reduce/flat/4".
      ranks: of each rank of the list its process and its device.
      values: a row for each rank of this process, in their order; becomes the result.

    Returns:
      Seconds from the last rank's arrival to the end, as seen here.

    Raises:
      JaxcommError: the processes cannot be connected, or one is gone or has not come before the deadline.
    """
    members.connected()
    processes, devices = (np.array(each, np.uint32) for each in zip(*ranks, strict=True))
    here = int((processes == members.connected().process).sum())
    seconds = ctypes.c_double()
    CPU.call(
        "job_run",
        call,
        _NUMBERS + number,
        messages,
        processes.ctypes.data,
        devices.ctypes.data,
        len(ranks),
        values.ctypes.data,
        values.nbytes // here,
        ctypes.byref(seconds),
    )
    return seconds.value


@store.cached
def measurements() -> Iterator[int]:
    """Numbers the job's measurements, alike in all processes, also in those that have been in no job before.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized.
    """
    return itertools.count()
