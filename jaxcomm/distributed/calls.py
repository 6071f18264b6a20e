"""Runs calls between processes without JAX: message lists on plain memory, for measurements and exchanges of values."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxcomm import errors
from jaxcomm.distributed import store
from jaxcomm.distributed.connect import members
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.arguments import MessageRun
from jaxcomm.ffi.cpu import CPU

_NUMBERS = 0x6A61_7863_0000_0000  # the number of call 0; other communicators' numbers are hashes, so clashes are rare


def run(call: str, number: int, messages: str, ranks: Sequence[tuple[int, int]], values: NDArray[Any]) -> float:
    """Runs a list of messages that sums the values as unsigned bytes, and waits until all messages have arrived.

    Args:
      call: the call's name in errors, such as "an exchange of ranks 0 and 3".
      number: the call's number; all processes of the call pass the same number, and no other call has it.
      messages: the name of the list, as `jaxcomm.ffi.register_messages` returns it, or "all_reduce/flat/4".
      ranks: process and device of each rank of the list.
      values: a row for each rank of this process, in order of `ranks`; overwritten with the result.

    Returns:
      Seconds from the last rank's arrival to the end, as measured by this process.

    Raises:
      JaxcommError: the processes cannot be connected, or a process has left, failed or missed the deadline.
    """
    members.connected()
    processes, devices = (np.array(each, np.uint32) for each in zip(*ranks, strict=True))
    here = int((processes == members.connected().process).sum())
    seconds = ctypes.c_double()
    made = MessageRun(_NUMBERS + number, call, messages, processes, devices, len(ranks), values, values.nbytes // here)
    if (error := CPU.failure("job_run", made, ctypes.byref(seconds))) is not None:
        raise errors.from_jax(RuntimeError(f": jaxcomm: {error}")) or JaxcommError(error)
    return seconds.value


@store.cached
def measurements() -> Iterator[int]:
    """Returns the counter that numbers the job's measurements. Each job counts from 0, so all processes agree.

    Raises:
      JaxcommError: `jax.distributed` has not been initialized.
    """
    return itertools.count()
