"""The C++ core: registering its custom calls with XLA, and its C functions.

`core` loads and calls a shared object, `cpu` names what the core for CPUs has. Other back ends register themselves, by
`add_backend` and, for the custom calls on segments, `segments.add_platform`. Importing it loads nothing; the first call
does. It may import errors, plan_history and statistics.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import math
import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jaxcomm import plan_history
from jaxcomm.errors import PlanError
from jaxcomm.ffi.cpu import CPU
from jaxcomm.statistics import Stats

if TYPE_CHECKING:
    import jax

TARGET = "jaxcomm_collective"
GROUPED = "jaxcomm_grouped"
ACROSS = "jaxcomm_across"
GROUPED_ACROSS = "jaxcomm_grouped_across"
_DELAY = "jaxcomm_delay"
_LONGEST_DELAY = 86400  # seconds, as in delay.cc
SEGMENTS = ("importance", "pack", "unpack", "scale")  # the custom calls of `segments`


@functools.cache
def register() -> None:
    """Registers the custom calls with XLA's CPU backend, once."""
    CPU.register(TARGET, "Collective", "cpu", ("instantiate", "execute"))
    CPU.register(GROUPED, "Grouped", "cpu", ("instantiate", "execute"))
    CPU.register(ACROSS, "Across", "cpu", ("instantiate", "execute"))
    CPU.register(GROUPED_ACROSS, "GroupedAcross", "cpu", ("instantiate", "execute"))
    CPU.register(_DELAY, "Delay", "cpu")
    for name in SEGMENTS:
        CPU.register(f"jaxcomm_{name}", name.capitalize(), "cpu")


class Backend(Protocol):
    """What runs programs elsewhere than on CPUs; it registers itself."""

    def register_program(self, name: str, data: bytes) -> None:
        """As `jaxcomm.ffi.register_program`, under a name that is given."""

    def set_deadline(self, seconds: float) -> None:
        """As `jaxcomm.ffi.set_deadline`."""

    def stats(self) -> list[dict[str, Any]]:
        """As `jaxcomm.ffi.stats`."""

    def reset_stats(self) -> None:
        """As `jaxcomm.ffi.reset_stats`."""


_backends: list[Backend] = []
_programs: dict[str, bytes] = {}  # what the core was given, for back ends that come later
_deadlines: list[float] = []  # the last one that was set


def add_backend(backend: Backend) -> None:
    """Has a back end given every program and deadline from now on, and those that the core has already."""
    for name, data in _programs.items():
        backend.register_program(name, data)
    for seconds in _deadlines:
        backend.set_deadline(seconds)
    _backends.append(backend)


@functools.lru_cache(maxsize=1024)
def register_program(data: bytes) -> str:
    """Hands an encoded program to the core and returns the name that a custom call finds it by.

    Raises:
      PlanError: the core's decoder refuses the program; the message says at which word.
    """
    name = hashlib.sha256(data).hexdigest()[:32]
    CPU.call("register_program", name, data, len(data), raises=PlanError)
    _programs[name] = data
    for backend in _backends:
        backend.register_program(name, data)
    return name


@functools.lru_cache(maxsize=256)
def register_messages(lists: tuple[bytes, ...]) -> str:
    """Hands the encoded message lists of all ranks to the core and returns the name that a custom call finds them by.

    Raises:
      PlanError: the core's decoder refuses a list; the message says at which word.
    """
    name = messages_name(lists)
    for data in lists:
        CPU.call("register_messages", name, data, len(data), raises=PlanError)
    return name


def messages_name(lists: tuple[bytes, ...]) -> str:
    """The name of the encoded message lists of all ranks, which is that of their content."""
    return hashlib.sha256(b"".join(lists)).hexdigest()[:32]


def set_deadline(seconds: float) -> None:
    """Sets how long a collective may wait for its last rank, in seconds, from the next call on."""
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"deadline_s is {seconds}; it must be a positive number of seconds")
    CPU.call("set_deadline", seconds)
    _deadlines[:] = [seconds]
    for backend in _backends:
        backend.set_deadline(seconds)


def stats() -> Stats:
    """What happened at each call site of this process since the start or the last `reset_stats`.

    It prints as a table; `json()`, `save(path)`, `scalars()` and `trace(path)` give it to other tools. Per site: name,
    axes, plan, ranks, bytes, calls, failed; `wait_s` and `late` by rank (total seconds a rank waited for the last one,
    how often it was the last one); `transfer_s`, total seconds from the last arrival to the end; `early_bytes_share`,
    how much of the work was done before the last arrival; `lost_bytes`, what the network has lost, as it may with the
    policy "network" of a `Loss`, of what the ranks of this process were to add; and of the last 256 calls `arrivals`
    (seconds after the first rank, by rank) and `after_arrival_s`.

    Sums in groups that are data (plan "groups") count once for all groups together: a rank waits for the last one of
    its group and may be that, `after_arrival_s` is the slowest group's, and `own_s` has for each of the last calls the
    seconds since each rank's call before ended, by rank. It is empty for other sites. Between processes `arrivals` has
    None for ranks of groups that no rank of this process is in, and `own_s` for ranks of other processes.

    What the run was like from its beginning is in each site's `spans`, 256 at most, which become longer as the run
    does: `at_s`, `length_s`, `calls`, and of these the mean `arrivals` and `after_arrival_s`.

    `rails`, an attribute of what is returned, has a record for each rail to each other process, if there are several:
    process, rail, `is_open`, `has_left` (with its process), `fences` (how often it was taken out of service), `bytes`
    that the process has received over it, and `shares`, its part of 1024 in calls from so many bytes on, as it is in
    force now. Its `spans` have `bytes`, `bytes_per_s` (the rate that was found, or None), and `share` (of the largest
    calls, where it has changed); its last 64 `changes` say when it was fenced and taken back.

    `plans` has a record for each plan that `jaxcomm.init` has made all threads follow, and of the one that plan="auto"
    has them follow: `axes` (none: all), `plan`, `since_s`, `ranks`, `roles`, `collectives` (the schedule of all-reduces
    from so many bytes on), `rails` (the threshold and the planned shares), and the `file` of a plan that the run made.
    `events` has the last 256 things that plan="auto" has found or done: `at_s`, what it `said`, its `outcome`, who was
    `late` and by how much (`late_by_s`), the `plan`, and what a step took, `before_s` and `after_s` the switch.
    """
    sites = _sites(spans=True)
    rails: list[dict[str, Any]] = json.loads(CPU.text("job_rails"))
    for record in (*sites, *rails):
        for name in {"spans", "changes"} & record.keys():
            record[name] = [_since_the_beginning(each) for each in record[name]]
    return Stats(sites, rails, plan_history.plans(), plan_history.events(), plan_history.seconds())


def sites() -> list[dict[str, Any]]:
    """The call sites of `stats` without their `spans`, which costs less."""
    return _sites(spans=False)


def _sites(*, spans: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(CPU.text("stats", spans))
    return found + [site for backend in _backends for site in backend.stats()]


def _since_the_beginning(record: dict[str, Any]) -> dict[str, Any]:
    """The core's microseconds of the monotonic clock as seconds of the run."""
    times = {"at_s": round(record.pop("at_us") / 1e6 - plan_history.BEGAN, 6)}
    if "length_us" in record:
        times["length_s"] = record.pop("length_us") / 1e6
    return times | record


def reset_stats() -> None:
    """Forgets what `stats` has gathered."""
    CPU.call("reset_stats")
    plan_history.forget()
    for backend in _backends:
        backend.reset_stats()


def kernel_isa() -> str:
    """The instruction set that the reductions use on this processor: avx512, avx2, neon or plain."""
    return CPU.text("kernel_isa")


def floor_seconds(ranks: int, nbytes: int, dtype: str = "float32", writes: int | None = None) -> float:
    """Measures one pass over `ranks` warm buffers of `nbytes` that reads all and stores the sum to all, in seconds.

    No allreduce between ranks that share this machine's memory can be faster.

    Args:
      ranks: how many buffers.
      nbytes: of each.
      dtype: float16, bfloat16, float32 or float64.
      writes: to how many of them the sum is stored, where not to all.

    Raises:
      JaxcommError: another type, or the system lacks the memory or the threads.
    """
    seconds = ctypes.c_double()
    CPU.call("floor_seconds", dtype, ranks, ranks if writes is None else writes, nbytes, ctypes.byref(seconds))
    return seconds.value


def delay(x: Any, seconds: jax.Array | float) -> Any:
    """Hands `x` on, `seconds` later; for making a rank late on purpose.

    On CPUs the core waits, by a timer; on other platforms a thread of the host sleeps.

    Args:
      x: an array or a tree of arrays; the result is the same.
      seconds: a scalar, read when the step runs, so that inside `shard_map` it may differ from rank to rank:
        `delay(grads, jnp.where(lax.axis_index("data") == 3, 0.02, 0.0))`. From 0 to 86400, a day: anything else is an
        error when the step runs.
    """
    import jax
    import jax.numpy as jnp

    register()
    leaves: list[Any]
    tree: Any
    leaves, tree = jax.tree.flatten(x)
    wait: Any = jnp.asarray(seconds, jnp.float32)
    return tree.unflatten(jax.lax.platform_dependent(leaves, wait, cpu=_delay_in_core, default=_delay_on_host))


def _delay_in_core(leaves: list[Any], seconds: jax.Array) -> list[Any]:
    import jax

    # The results' types are the operands' own, so that they vary over the same axes.
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

    # It takes and returns data that XLA knows nothing of, so that neither end of the wait can be moved. `io_callback`
    # has an effect, for which JAX would call the step by a slower way on CPUs, too.
    there = [leaf.ravel()[:1] for leaf in leaves]
    waited = jax.pure_callback(sleep, jax.ShapeDtypeStruct((), jnp.bool_), seconds, *there)
    return [jnp.where(waited, leaf, jnp.zeros_like(leaf)) for leaf in leaves]
