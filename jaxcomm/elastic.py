"""Sends the training state of the process with the most progress to processes that join a running job.

    with live_devices(jax.devices()) as devices:
        step, params = jaxcomm.elastic.catch_up(step, params)

`recipes/elastic/train.py` is a whole program.
"""

from __future__ import annotations

import hashlib
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxcomm import jax_compat
from jaxcomm.distributed import calls, store
from jaxcomm.distributed.connect import members
from jaxcomm.errors import JaxcommError
from jaxcomm.log import say

_State = TypeVar("_State")
_Bytes = NDArray[np.uint8]

_CHUNK_BYTES: Final = 8 << 20  # bytes of one broadcast: large, so that round trips between broadcasts cost little
_FIRST_NUMBER: Final = 1 << 40  # larger than the numbers that other users of `calls.run` pass
_PROGRESS_S: Final = 5.0  # time between two log lines of a long transfer
PREEMPTED: Final = 128 + signal.SIGTERM  # exit status of a preempted process; supervisors start the process again
_calls: tuple[tuple[str, int], int] = (("", -1), 0)  # latest barrier (generation, number), and number of calls since
_sigterm: list[int] = []  # one entry for each SIGTERM that has arrived


class _Process(NamedTuple):
    """The values that a live process sends to the other live processes."""

    progress: int
    digest: int  # a hash of the state's structure, shapes and types


def catch_up(progress: int, state: _State) -> tuple[int, _State]:
    """Gives all live processes the progress and the state of the process with the most progress.

    All live processes call this inside `live_devices`. If all have the same progress, they exchange only a few bytes.
    Otherwise one process with the most progress sends its state to all processes with less progress. If several
    processes have the most progress, the process with the lowest number sends.

    Schedulers send SIGTERM some time before they end a process. If SIGTERM has arrived, and the program has no handler
    of its own for it, this function ends the process with exit status 143. The process then has run no step of the
    `live_devices` block, so the other processes continue without the process and lose no step.

    If another process has finished, and no live process has any progress, this function ends the process with exit
    status 0, so a finished training run does not begin anew.

    Args:
      progress: a number that grows during training, at least 0, such as the step. A process that has just started
        passes 0.
      state: a pytree of arrays, numbers and typed keys of `jax.random`. Each process has all arrays whole: an array on
        devices of several processes must be replicated. Structure, shapes and types are the same in all processes.

    Returns:
      The progress and the state. A process that had less progress gets NumPy arrays and typed keys. All other processes
      get their own arguments.

    Raises:
      JaxcommError: a state cannot be sent; or states have different structures, shapes or types; or a process has ended
        or did not call this function before the deadline.

    Example:
      >>> step, params = jaxcomm.elastic.catch_up(3, {"kernel": jnp.zeros(2)})  # all processes get the furthest step
      >>> step
      3
    """
    if not jax_compat.spans_processes():
        return progress, state
    _leave_if_preempted()
    if progress < 0:
        raise JaxcommError(f"catch_up: progress is {progress}.\n  Cure: pass a number of at least 0, such as the step.")
    leaves, tree = jax.tree_util.tree_flatten_with_path(state)
    names = [jax.tree_util.keystr(path) for path, _ in leaves]
    arrays = [_array(name, leaf) for name, (_, leaf) in zip(names, leaves, strict=True)]
    layout = [(name, array.dtype.name, array.shape) for name, array in zip(names, arrays, strict=True)]
    digest = hashlib.sha256(repr(layout).encode()).digest()[:8]
    number = _next_number()
    found = _exchange(_Process(progress, int.from_bytes(digest)), number)
    source = max(found, key=lambda process: found[process].progress)
    furthest = found[source].progress
    if not furthest and store.find_ended():
        here = jax.process_index()
        print(f"jaxcomm: process {here} was started again when the others had finished; it ends.", file=sys.stderr)
        members.leave(0)
    behind = [process for process, each in found.items() if each.progress < furthest]
    if not behind:
        return progress, state
    if others := [process for process in behind if found[process].digest != found[source].digest]:
        raise JaxcommError(
            f"catch_up: the states of processes {', '.join(map(str, others))} differ from that of process {source} in "
            "structure, shapes or types.\n  Cure: build the state in the same way in all processes."
        )
    here = jax.process_index()
    if here not in (source, *behind):
        return progress, state
    if here != source:
        arrays = [np.empty(array.shape, array.dtype) for array in arrays]
    _broadcast(arrays, [source, *behind], number)
    if here == source:
        return progress, state
    values = [_leaf(array, leaf) for array, (_, leaf) in zip(arrays, leaves, strict=True)]
    return furthest, jax.tree_util.tree_unflatten(tree, values)


def _next_number() -> int:
    """Returns the number of this call of `catch_up`, which is the same in all members, even after a failed call."""
    global _calls
    members.connected()
    now = (store.generation(), members.barriers())
    _calls = (now, _calls[1] + 1 if _calls[0] == now else 0)
    return _FIRST_NUMBER + (((members.barriers() << 8) + _calls[1]) << 20)


def _leave_if_preempted() -> None:
    """Ends this process with `PREEMPTED` if SIGTERM has arrived since the first call of this function.

    The process then skips JAX's barrier at the end of the `live_devices` block, so other processes do not wait for it.
    """
    if _sigterm:
        members.leave(PREEMPTED)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda number, frame: _sigterm.append(number))


def _array(name: str, leaf: Any) -> NDArray[Any]:
    """The leaf's values in this process's memory, without a copy if possible."""
    if isinstance(leaf, jax.Array):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if not leaf.is_fully_addressable:
            if not leaf.is_fully_replicated:
                raise JaxcommError(
                    f"catch_up: state{name} is sharded over several processes.\n"
                    "  Cure: pass arrays that are replicated, or restore a checkpoint in all processes."
                )
            leaf = leaf.addressable_data(0)
    array = np.asarray(leaf)
    if array.dtype.hasobject:
        raise JaxcommError(
            f"catch_up: state{name} is {type(leaf).__name__}, which has no bytes to send.\n"
            "  Cure: pass arrays, numbers and typed keys only."
        )
    return np.ascontiguousarray(array).reshape(array.shape)


def _leaf(array: NDArray[Any], leaf: Any) -> Any:
    """Converts a received array to the kind of this process's leaf: an array, or a typed key."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
    return array


def _exchange(own: _Process, number: int) -> dict[int, _Process]:
    """Sends this process's values, and returns the values of each live process, by process in ascending order."""
    processes = sorted(members.connected().incarnations)
    rows = np.zeros((len(processes), 2), np.uint64)
    rows[processes.index(jax.process_index())] = own
    if len(processes) > 1:  # sums the rows; each process has zeros in the rows of the other processes
        _run("the progress of the processes", number, "all_reduce/flat", processes, rows.reshape(-1).view(np.uint8))
    return {process: _Process(*map(int, row)) for process, row in zip(processes, rows, strict=True)}


def _broadcast(arrays: Sequence[NDArray[Any]], processes: Sequence[int], number: int) -> None:
    """Copies the arrays of the first process in `processes` into the arrays of the other processes."""
    call = f"the state of process {processes[0]}"
    is_source = processes[0] == jax.process_index()
    total, done, logged = sum(array.nbytes for array in arrays), 0, time.monotonic()
    for index, parts in enumerate(_chunks(arrays)):
        chunk = parts[0] if len(parts) == 1 else np.concatenate(parts)
        _run(call, number + 1 + index, "broadcast/flat", processes, chunk)
        if len(parts) > 1 and not is_source:
            for part, values in zip(parts, np.split(chunk, np.cumsum([part.size for part in parts])[:-1]), strict=True):
                part[:] = values
        done += chunk.size
        if time.monotonic() - logged > _PROGRESS_S:
            logged = time.monotonic()
            say(f"catch_up: {done >> 20} of {total >> 20} MiB of {call} {'sent' if is_source else 'received'}.")


def _chunks(arrays: Sequence[NDArray[Any]]) -> Iterator[list[_Bytes]]:
    """Yields the bytes of the arrays, in order, as lists of parts. A list has at most _CHUNK_BYTES bytes."""
    parts: list[_Bytes] = []
    free = _CHUNK_BYTES
    for array in arrays:
        rest = array.reshape(-1).view(np.uint8)
        while rest.size:
            part, rest = rest[:free], rest[free:]
            parts.append(part)
            free -= part.size
            if not free:
                yield parts
                parts, free = [], _CHUNK_BYTES
    if parts:
        yield parts


def _run(call: str, number: int, messages: str, processes: Sequence[int], values: _Bytes) -> None:
    devices = {device.process_index: device.id for device in reversed(jax.devices())}
    ranks = [(process, devices[process]) for process in processes]
    calls.run(call, number, f"{messages}/{len(ranks)}", ranks, values)
