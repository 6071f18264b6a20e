"""Measures this process's JAX devices with jaxcomm's own psum: what it costs by size, and who arrives when."""

from __future__ import annotations

import datetime
import importlib.metadata
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxcomm.errors import ProfileError
from jaxcomm.profile.fit import fit
from jaxcomm.profile.schema import Collective, Profile, Provenance
from jaxcomm.profile.values import Sample

SIZES = tuple(2**power for power in range(12, 25, 2))
CALLS_PER_SIZE = 40
WARMUP_STEPS = 5
_CALLS_KEPT = 256  # as many last calls' times as ffi.stats() keeps


def measure(
    devices: int, sizes: Sequence[int] = SIZES, steps: int = 50, *, inject: Mapping[int, float] | None = None
) -> Profile:
    """Profiles `devices` of this process's CPU devices.

    A call's time is from the last rank's arrival to the end, as the core measures it: JAX's dispatch is not in it. For
    each size the median over 40 warm calls in a jitted loop is a sample. The arrivals are those of `steps` further
    calls at the largest size, in a loop that does nothing else: who is late there is late by the machine, or by
    `inject`.

    Args:
      devices: ranks n, at least 2; JAX must have been started with as many CPU devices.
      sizes: bytes per rank, each at least 4; rounded down to whole float32.
      steps: rows of `arrivals`, at least 1.
      inject: seconds by rank by which to make ranks late on purpose, in the steps only.

    Returns:
      The profile. The psum runs the direct schedule, and α and β are fitted as such.

    Raises:
      ProfileError: an argument that cannot be, or too few devices.
    """
    inject = dict(inject or {})
    _check(devices, sizes, steps, inject)
    import jax

    from jaxcomm import communicator, ffi

    found = jax.devices("cpu")
    if len(found) < devices:
        raise ProfileError(
            f"devices is {devices}, but JAX has {len(found)} CPU devices in this process.\n"
            f"  Cure: start it with XLA_FLAGS=--xla_force_host_platform_device_count={devices} and "
            f"PJRT_NPROC={4 * devices}, as `jaxcomm profile --devices {devices}` does."
        )
    mesh = jax.sharding.Mesh(np.array(found[:devices]), ("data",))
    samples = []
    with communicator.use_plan(None):
        timed = _loop(mesh, {})
        for size in sorted(sizes):
            calls = _run(timed, _zeros(mesh, size), CALLS_PER_SIZE, ffi)
            samples.append(Sample(bytes=size // 4 * 4, seconds=float(np.median(calls["after_arrival_s"]))))
        stepped = _loop(mesh, inject)
        arrivals: list[list[float]] = []
        while len(arrivals) < steps:
            count = min(steps - len(arrivals), _CALLS_KEPT)
            arrivals += _run(stepped, _zeros(mesh, max(sizes)), count, ffi)["arrivals"]
    host = f"{devices} host devices on {os.cpu_count()} processors ({platform.machine()}, {ffi.kernel_isa()})"
    late = "".join(f", rank {rank} made {seconds * 1e3:g} ms late" for rank, seconds in sorted(inject.items()))
    return Profile(
        ranks=devices,
        link=fit(samples, "all_reduce", devices, f"psum between {host}, from the last arrival", "direct"),
        arrivals=np.round(arrivals, 9).tolist(),
        warmup_dropped=WARMUP_STEPS,
        collective=Collective(bytes=samples[-1].bytes, seconds=samples[-1].seconds),
        provenance=Provenance(
            source=host + late,
            tool="jaxcomm profile",
            versions={name: importlib.metadata.version(name) for name in ("jax", "jaxlib")},
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        ),
    )


def _check(devices: int, sizes: Sequence[int], steps: int, inject: Mapping[int, float]) -> None:
    wrong = [f"devices is {devices}; at least 2 are needed"] if devices < 2 else []
    wrong += [f"sizes has {size}; each must be 4 bytes or more" for size in sizes if size < 4]
    wrong += [] if sizes else ["sizes is empty; one or more are needed"]
    wrong += [f"steps is {steps}; at least 1 is needed"] if steps < 1 else []
    for rank, seconds in inject.items():
        if not 0 <= rank < devices:
            wrong.append(f"inject names rank {rank}; the ranks are 0 to {devices - 1}")
        if not (0 <= seconds < math.inf):
            wrong.append(f"inject makes rank {rank} late by {seconds} s; that must be a finite time of 0 or more")
    if wrong:
        raise ProfileError(f"{wrong[0]}.\n  Cure: change it and measure again.")


def _loop(mesh: Any, inject: Mapping[int, float]) -> Callable[[Any, int], Any]:
    """A jitted, donated loop of so many psums, each after its rank's injected delay."""
    import jax

    from jaxcomm import collectives, ffi

    spec: Any = jax.sharding.PartitionSpec  # untyped in JAX
    late = [inject.get(rank, 0.0) for rank in range(mesh.size)]

    def step(_: Any, x: Any) -> Any:
        if inject:
            x = ffi.delay(x, jax.numpy.array(late)[jax.lax.axis_index("data")])
        return collectives.psum(x, "data")

    def loop(x: Any, count: Any) -> Any:
        return jax.lax.fori_loop(0, count, step, x)

    mapped = jax.shard_map(loop, mesh=mesh, in_specs=(spec("data"), spec()), out_specs=spec("data"), check_vma=False)
    return jax.jit(mapped, donate_argnums=0)


def _zeros(mesh: Any, nbytes: int) -> Any:
    import jax

    spec: Any = jax.sharding.PartitionSpec
    sharding = jax.sharding.NamedSharding(mesh, spec("data"))
    return jax.device_put(np.zeros((mesh.size, nbytes // 4), np.float32), sharding)


def _run(loop: Callable[[Any, int], Any], x: Any, count: int, ffi: Any) -> dict[str, Any]:
    """Runs the loop, warm, and returns the core's record of its `count` psums."""
    x = loop(x, WARMUP_STEPS).block_until_ready()
    ffi.reset_stats()
    loop(x, count).block_until_ready()
    [site] = [site for site in ffi.stats() if site["calls"]]
    record: dict[str, Any] = site
    return record
