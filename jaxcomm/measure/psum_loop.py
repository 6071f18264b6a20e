"""Sums in a jitted loop, and the core's record of these sums."""

from __future__ import annotations

import datetime
import importlib.metadata
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jaxcomm.errors import JaxcommError, ProfileError
from jaxcomm.profile.schema import Provenance

if TYPE_CHECKING:
    from jaxcomm.plan import Plan

WARMUP_STEPS = 5
_RECORDED_S: Final = 30.0


def loop(mesh: Any, late: Mapping[int, float]) -> Callable[[Any, int], Any]:
    """A jitted, donated loop of psums. Before each psum, every rank in `late` waits `late[rank]` seconds."""
    import jax

    from jaxcomm import collectives, ffi

    spec: Any = jax.sharding.PartitionSpec  # untyped in JAX
    seconds = [late.get(rank, 0.0) for rank in range(mesh.size)]

    def step(_: Any, x: Any) -> Any:
        if late:
            x = ffi.delay(x, jax.numpy.array(seconds)[jax.lax.axis_index("data")])
        return collectives.psum(x, "data")

    def steps(x: Any, count: Any) -> Any:
        return jax.lax.fori_loop(0, count, step, x)

    mapped = jax.shard_map(steps, mesh=mesh, in_specs=(spec("data"), spec()), out_specs=spec("data"), check_vma=False)
    return jax.jit(mapped, donate_argnums=0)


def timed_loop(mesh: Any, plan: Plan) -> Callable[[Any, Any, int], Any]:
    """A jitted, donated loop of psums under a plan. The loop takes buffers, each rank's wait, and the number of calls.

    Each rank writes its buffer just before a psum, as in a step that computes gradients, so parts of the buffer are in
    the caches.
    """
    import jax

    from jaxcomm import collectives, ffi

    def steps(x: Any, seconds: Any, count: Any) -> Any:
        own = seconds[jax.lax.axis_index("data")]

        return jax.lax.fori_loop(0, count, lambda _, x: collectives.psum(ffi.delay(x / 2, own), "data", plan=plan), x)

    return _jitted(mesh, steps)


def barrier_loop(mesh: Any, plan: Plan | None) -> Callable[[Any, Any, int], Any]:
    """Like `timed_loop`, but on zeros, with a barrier of all ranks after each psum. Without a plan, no psums run."""
    import jax

    from jaxcomm import collectives, ffi

    def steps(x: Any, seconds: Any, count: Any) -> Any:
        own = seconds[jax.lax.axis_index("data")]

        def step(_: Any, x: Any) -> Any:
            x = ffi.delay(x, own)
            x = collectives.psum(x, "data", plan=plan) if plan else x
            return x / 2 + jax.lax.pmax(x[:, :1], "data")  # each rank writes its buffer after the barrier

        return jax.lax.fori_loop(0, count, step, x)

    return _jitted(mesh, steps)


def _jitted(mesh: Any, steps: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, int], Any]:
    import jax

    from jaxcomm.jax_compat.contexts import trying_plans

    spec: Any = jax.sharding.PartitionSpec
    specs = (spec("data"), spec(), spec())
    mapped = jax.shard_map(steps, mesh=mesh, in_specs=specs, out_specs=spec("data"), check_vma=False)
    looped = jax.jit(mapped, donate_argnums=0)

    def run_it(x: Any, seconds: Any, count: int) -> Any:
        with trying_plans(False):  # without trials, so that every call runs the timed schedule
            return looped(x, seconds, count)

    return run_it


def zeros(mesh: Any, nbytes: int) -> Any:
    """`nbytes` of zeros on every device of the mesh."""
    import jax

    spec: Any = jax.sharding.PartitionSpec
    shape = (mesh.size, nbytes // 4)
    sharding = jax.sharding.NamedSharding(mesh, spec("data"))
    return jax.make_array_from_callback(shape, sharding, lambda _: np.zeros((1, shape[1]), np.float32))


def run(looped: Callable[[Any, int], Any], x: Any, count: int) -> dict[str, Any]:
    """Warms the loop up, runs `count` psums in it, and returns the core's record of these psums."""
    from jaxcomm import ffi

    x = looped(x, WARMUP_STEPS).block_until_ready()
    ffi.reset_stats()
    looped(x, count).block_until_ready()
    return recorded(count)


def provenance(source: str, late: Mapping[int, float]) -> Provenance:
    """The provenance of a measurement made now, with the ranks that were made late."""
    return Provenance(
        source=source + "".join(f", rank {rank} made {s * 1e3:g} ms late" for rank, s in sorted(late.items())),
        tool="jaxcomm profile",
        versions={name: importlib.metadata.version(name) for name in ("jax", "jaxlib")},
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def check_arguments(ranks: int, sizes: Sequence[int], steps: int, late: Mapping[int, float]) -> None:
    """Checks the arguments of a measurement.

    Raises:
      ProfileError: there are too few ranks, sizes or steps, or a late rank is invalid.
    """
    wrong = [f"devices is {ranks}; at least 2 are needed"] if ranks < 2 else []
    wrong += [f"sizes has {size}; each must be 4 bytes or more" for size in sizes if size < 4]
    wrong += [] if sizes else ["sizes is empty; one or more are needed"]
    wrong += [f"steps is {steps}; at least 1 is needed"] if steps < 1 else []
    wrong += wrong_late_ranks(late, ranks)
    if wrong:
        raise ProfileError(f"{wrong[0]}.\n  Cure: change it and measure again.")


def wrong_late_ranks(late: Mapping[int, float], ranks: int) -> list[str]:
    """One error text for each entry of `late` whose rank does not exist or whose time is invalid."""
    wrong = [f"late names rank {rank}; the ranks are 0 to {ranks - 1}" for rank in late if not 0 <= rank < ranks]
    return wrong + [
        f"late makes rank {rank} late by {seconds} s; that must be a finite time of 0 or more"
        for rank, seconds in late.items()
        if not 0 <= seconds < math.inf
    ]


def recorded(calls: int) -> dict[str, Any]:
    """Waits until the core has recorded all calls since the statistics were reset, and returns the record.

    In a job of several processes, a call may be recorded shortly after its end. The last call before the reset may
    therefore be recorded after the reset.

    Args:
      calls: number of calls, all at one call site.

    Raises:
      JaxcommError: the calls have not been recorded in time.
    """
    from jaxcomm import ffi

    until = time.monotonic() + _RECORDED_S
    while True:
        site: dict[str, Any] = max(ffi.sites(), key=lambda site: int(site["calls"]), default={"calls": 0})
        if site["calls"] >= calls:
            return site
        if time.monotonic() > until:
            raise JaxcommError(f"{site['calls']} of {calls} calls have ended.\n  Cure: look at the other processes.")
        time.sleep(1e-3)
