"""The C++ core: its C functions, and the registration of its custom calls with XLA.

`core` loads and calls a shared object. `cpu` lists the functions of the core for CPUs. Other back ends register
themselves by `add_backend`. Back ends with custom calls on segments also call `segments.add_platform`. Importing this
package loads nothing; the first call loads the core. This package may import only `errors` from jaxcomm.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from jaxcomm.errors import PlanError
from jaxcomm.ffi.cpu import CPU

if TYPE_CHECKING:
    import jax

TARGET = "jaxcomm_collective"
_DELAY = "jaxcomm_delay"
_LONGEST_DELAY = 86400  # seconds, as in delay.cc
SEGMENTS = ("importance", "pack", "unpack", "scale")  # the custom calls of `segments`
_Tree = TypeVar("_Tree")


@functools.cache
def register() -> None:
    """Registers the custom calls with XLA's CPU backend, once."""
    CPU.register(TARGET, "Collective", "cpu", ("instantiate", "execute"))
    CPU.register(_DELAY, "Delay", "cpu")
    for name in SEGMENTS:
        CPU.register(f"jaxcomm_{name}", name.capitalize(), "cpu")


class Backend(Protocol):
    """An executor of programs on devices other than CPUs. It registers itself by `add_backend`."""

    def register_program(self, name: str, data: bytes) -> None:
        """Registers a program under a name. `jaxcomm.ffi.register_program` calls this."""

    def set_deadline(self, seconds: float) -> None:
        """Sets the deadline of calls. `jaxcomm.ffi.set_deadline` calls this."""

    def sites(self) -> list[dict[str, Any]]:
        """Returns the records of call sites. `jaxcomm.ffi.sites` calls this."""

    def reset_stats(self) -> None:
        """Forgets the records of call sites. `jaxcomm.ffi.reset_stats` calls this."""

    def calls(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the latest calls. `jaxcomm.ffi.calls` calls this."""


_backends: list[Backend] = []
_programs: dict[str, bytes] = {}  # the core's programs, by name; `add_backend` passes them to a new back end
_DEADLINE_S = 60.0  # the default deadline, as in cc/base/default_deadline.h
_deadlines: list[float] = []  # the deadline that was set last; empty if none was set


def add_backend(backend: Backend) -> None:
    """Adds a back end. Passes the core's programs and deadline to the back end, now and at every later change."""
    for name, data in _programs.items():
        backend.register_program(name, data)
    for seconds in _deadlines:
        backend.set_deadline(seconds)
    _backends.append(backend)


@functools.lru_cache(maxsize=1024)
def register_program(data: bytes) -> str:
    """Hands an encoded program to the core and returns the name by which a custom call finds it.

    Raises:
      PlanError: the core's decoder refuses the program; the error text names the invalid word.
    """
    name = hashlib.sha256(data).hexdigest()[:32]
    CPU.call("register_program", name, data, len(data), raises=PlanError)
    _programs[name] = data
    for backend in _backends:
        backend.register_program(name, data)
    return name


def register_messages(lists: tuple[bytes, ...]) -> str:
    """Hands all ranks' encoded message lists to the core. Returns the name by which a custom call finds the lists.

    A message list has the messages that one rank sends and receives in a schedule.

    Raises:
      PlanError: the core's decoder refuses a list; the error text names the invalid word.
    """
    name = messages_name(lists)
    for data in lists:
        CPU.call("register_messages", name, data, len(data), raises=PlanError)
    return name


def messages_name(lists: tuple[bytes, ...]) -> str:
    """The name of all ranks' encoded message lists: a hash of their content."""
    return hashlib.sha256(b"".join(lists)).hexdigest()[:32]


def set_deadline(seconds: float) -> None:
    """Sets how long a collective may wait for its last rank, in seconds, from the next call on."""
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"deadline_s is {seconds}; it must be a positive number of seconds")
    CPU.call("set_deadline", seconds)
    _deadlines[:] = [seconds]
    for backend in _backends:
        backend.set_deadline(seconds)


def deadline() -> float:
    """The deadline of collectives, in seconds."""
    return _deadlines[-1] if _deadlines else _DEADLINE_S


def sites(*, spans: bool = False) -> list[dict[str, Any]]:
    """The records of call sites, as in `jaxcomm.stats()`. The call is faster without the records' `spans`."""
    found: list[dict[str, Any]] = json.loads(CPU.text("stats", spans))
    return found + _sites_of_backends(spans=spans)


def _sites_of_backends(*, spans: bool) -> list[dict[str, Any]]:
    found = [site for backend in _backends for site in backend.sites()]
    return found if spans else [{name: value for name, value in site.items() if name != "spans"} for site in found]


def rails() -> list[dict[str, Any]]:
    """The records of rails, as in `jaxcomm.stats()`, but with times in microseconds of the monotonic clock."""
    found: list[dict[str, Any]] = json.loads(CPU.text("job_rails"))
    return found


def gone() -> list[dict[str, Any]]:
    """The records of processes that have left or failed, as in `jaxcomm.stats()`, but with times as in `rails`."""
    found: list[dict[str, Any]] = json.loads(CPU.text("job_gone"))
    return found


def record_texts() -> dict[str, str]:
    """The records of `rails`, of `gone`, and of `sites` (without their spans), each as JSON.

    The core's texts are parsed only if another backend has sites, so other threads can run Python meanwhile.
    """
    sites = CPU.text("stats", False)
    if further := _sites_of_backends(spans=False):
        sites = json.dumps(json.loads(sites) + further)
    return {"sites": sites, "rails": CPU.text("job_rails"), "gone": CPU.text("job_gone")}


def calls() -> dict[str, list[dict[str, Any]]]:
    """The latest calls, as in `profile.dump_file`, but with times as in `rails`."""
    found: dict[str, list[dict[str, Any]]] = json.loads(CPU.text("calls"))
    for backend in _backends:
        for name, further in backend.calls().items():
            found[name] += further
    return found


def add_failure(message: str, record: Mapping[str, Any]) -> None:
    """Adds a failed call, which the core did not run, to the failures that `await_failure` returns.

    Args:
      message: the text of the error.
      record: the fields of the error. The field `error` names the error's class in `jaxcomm.errors`.
    """
    CPU.call("add_failure", message, json.dumps(record))


def await_failure(seen: int, *, waits: bool) -> dict[str, Any] | None:
    """The message and the record of this process's failure number `seen`, counted from 0.

    If this failure has not happened yet, waits for it if `waits` is true, otherwise returns None.
    """
    text = CPU.text("await_failure", seen, waits)
    found: dict[str, Any] | None = json.loads(text) if text else None
    return found


def reset_stats() -> None:
    """Forgets the records of call sites."""
    CPU.call("reset_stats")
    for backend in _backends:
        backend.reset_stats()


class Comparison(NamedTuple):
    """The times of the same calls or steps in two variants, such as with and without a plan.

    Attributes:
      first_s: trimmed mean of the first variant's seconds.
      second_s: trimmed mean of the second variant's seconds.
      least_s: the largest difference of the two means that chance may explain. Only a larger difference counts.
    """

    first_s: float
    second_s: float
    least_s: float

    @property
    def is_shorter(self) -> bool:
        """Whether the first variant takes less time."""
        return self.second_s - self.first_s > self.least_s

    @property
    def is_longer(self) -> bool:
        """Whether the first variant takes more time."""
        return self.first_s - self.second_s > self.least_s


def compare(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Compares two variants by their seconds, as a plan's trial does. Each variant needs at least two measurements."""
    one, other, found = np.array(first, np.float64), np.array(second, np.float64), np.zeros(3)
    CPU.call("compare", one.ctypes.data, one.size, other.ctypes.data, other.size, found.ctypes.data)
    return Comparison(*found.tolist())


def kernel_isa() -> str:
    """The instruction set that the reductions use on this processor: avx512, avx2, neon or plain."""
    return CPU.text("kernel_isa")


def floor_seconds(ranks: int, nbytes: int, dtype: str = "float32", writes: int | None = None) -> float:
    """Measures the seconds of one pass that reads `ranks` warm buffers and stores their sum to all of them.

    No allreduce between ranks that share this machine's memory can be faster.

    Args:
      ranks: the number of buffers.
      nbytes: the bytes of each buffer.
      dtype: float16, bfloat16, float32 or float64.
      writes: the number of buffers to which the sum is stored; None stands for all buffers.

    Raises:
      JaxcommError: `dtype` is another type, or the system lacks the memory or the threads.
    """
    seconds = ctypes.c_double()
    CPU.call("floor_seconds", dtype, ranks, ranks if writes is None else writes, nbytes, ctypes.byref(seconds))
    return seconds.value


def delay(x: _Tree, seconds: jax.Array | float) -> _Tree:
    """Returns `x` after a delay of `seconds`, to make a rank late on purpose.

    On CPUs a timer of the core delays the result. On other platforms a thread of the host sleeps.

    Args:
      x: an array or a tree of arrays; the result is the same.
      seconds: a scalar from 0 to 86400 (a day), read when the step runs. Another value makes the step fail. Inside
        `shard_map` the value may differ from rank to rank:
        `delay(grads, jnp.where(lax.axis_index("data") == 3, 0.02, 0.0))`.
    """
    import jax
    import jax.numpy as jnp

    register()
    leaves: list[Any]
    tree: Any
    leaves, tree = jax.tree.flatten(x)
    wait: Any = jnp.asarray(seconds, jnp.float32)
    result: _Tree = tree.unflatten(jax.lax.platform_dependent(leaves, wait, cpu=_delay_in_core, default=_delay_on_host))
    return result


def _delay_in_core(leaves: list[Any], seconds: jax.Array) -> list[Any]:
    import jax

    # The results have the operands' types, so that the results vary over the same mesh axes.
    types = [jax.typeof(leaf) for leaf in leaves]
    call = jax.ffi.ffi_call(_DELAY, types, input_output_aliases={i: i for i in range(len(leaves))})
    return list(call(*leaves, seconds))


def _delay_on_host(leaves: list[Any], seconds: jax.Array) -> list[Any]:
    import jax
    import jax.numpy as jnp

    def sleep(seconds: Any, *there: Any) -> np.bool_:
        if not 0 <= seconds <= _LONGEST_DELAY:
            raise ValueError(
                f"delay: seconds is {seconds}.\n  Cure: delay by 0 to {_LONGEST_DELAY} seconds, which is a day."
            )
        time.sleep(float(seconds))
        return np.bool_(True)

    # The callback reads the leaves, and the results depend on the callback's value. So XLA can neither start the wait
    # early nor return the leaves before the wait ends. `io_callback` is not used, because it has an effect, and JAX
    # calls steps with effects by a slower path, on CPUs too.
    there = [leaf.ravel()[:1] for leaf in leaves]
    waited = jax.pure_callback(sleep, jax.ShapeDtypeStruct((), jnp.bool_), seconds, *there)
    return [jnp.where(waited, leaf, jnp.zeros_like(leaf)) for leaf in leaves]
