"""Measures this process's JAX devices with jaxcomm's own psum: its time by size, and the arrivals.

On GPUs also what NCCL's own allreduce costs, which a plan may choose.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from jaxcomm.errors import ProfileError
from jaxcomm.measure.psum_loop import WARMUP_STEPS, check_arguments, loop, provenance, run, zeros
from jaxcomm.measure.schedules import SECONDS, SIZES, time_schedules
from jaxcomm.profile.fit import fit
from jaxcomm.profile.racks_and_rails import Sample
from jaxcomm.profile.schema import Collective, ExecutorName, Link, Profile

CALLS_PER_SIZE = 40
LOOPS = 5  # of as many calls, of each executor
_CALLS_KEPT = 64  # of how many last calls every core has the times

Platform = Literal["cpu", "cuda"]


def measure_devices(
    devices: int,
    sizes: Sequence[int] = SIZES,
    steps: int = 50,
    *,
    late: Mapping[int, float] | None = None,
    on: Platform = "cpu",
    seconds: float = SECONDS,
    progress: Callable[[float], object] = lambda share: None,
) -> Profile:
    """Profiles `devices` of this process's CPU devices or GPUs.

    A call's time is from the last rank's arrival to the end, as the core measures it: JAX's dispatch is not in it. On
    CPUs whole schedules are timed in turns, with nobody late and with one rank late: the one that is latest in `late`,
    or the last one. α and β are fitted to the direct schedule with nobody late. On GPUs the psum is the fused
    executor's, and the median over 40 warm calls in a jitted loop is a sample of each size; it and NCCL's allreduce are
    also timed alike, in loops of 40. The arrivals are those of `steps` further calls at the largest timed size, in a
    loop that does nothing else: a rank is late there by the machine, or by `late`.

    Args:
      devices: ranks n, at least 2; JAX must have as many.
      sizes: bytes per rank, each at least 4; rounded down to whole float32.
      steps: rows of `arrivals`, at least 1.
      late: seconds by rank by which to make ranks late on purpose, in the steps only.
      on: "cpu" or "cuda".
      seconds: for the schedules on CPUs, roughly: the largest sizes are left out as far as they do not suffice.
      progress: called with the finished share, from 0 to 1.

    Returns:
      The profile. The psum runs the direct schedule, and α and β are fitted as such.

    Raises:
      ProfileError: an argument that cannot be, too few devices, or GPUs that run no plans.
    """
    late = dict(late or {})
    check_arguments(devices, sizes, steps, late)
    import jax

    from jaxcomm import ffi
    from jaxcomm.collectives import communicator

    mesh = jax.sharding.Mesh(np.array(_devices(devices, on)), ("data",))
    where = f"{devices} host devices" if on == "cpu" else f"{devices} GPUs ({mesh.devices[0].device_kind})"
    host = f"{where} on {os.cpu_count()} processors ({platform.machine()}, {ffi.kernel_isa()})"
    timed = None
    with communicator.use_plan(None):
        if on == "cpu":
            timed = time_schedules(
                mesh, "memory", late, sizes, seconds=seconds, progress=lambda share: progress(0.9 * share)
            )
            direct = next(each.samples for each in timed.schedules if each.kind == "direct")
            samples = [Sample(bytes=each.bytes, seconds=each.together_s) for each in direct]
        else:
            samples = _samples(mesh, sizes)
        stepped = loop(mesh, late)
        arrivals: list[list[float]] = []
        while len(arrivals) < steps:
            count = min(steps - len(arrivals), _CALLS_KEPT)
            arrivals += run(stepped, zeros(mesh, samples[-1].bytes), count)["arrivals"]
            progress(0.9 + 0.1 * len(arrivals) / steps)
        executors = _executors(mesh, sorted(sizes), host) if on == "cuda" else {}
    link = fit(samples, "all_reduce", devices, f"psum between {host}, from the last arrival", "direct")
    return Profile(
        ranks=devices,
        link=link,
        arrivals=np.round(arrivals, 9).tolist(),
        warmup_dropped=WARMUP_STEPS,
        collective=Collective(bytes=samples[-1].bytes, seconds=samples[-1].seconds),
        executors=executors,
        timed_schedules=timed,
        provenance=provenance(host, late),
    )


def _samples(mesh: Any, sizes: Sequence[int]) -> list[Sample]:
    """The median of warm calls in a jitted loop, of each size."""
    timed, samples = loop(mesh, {}), []
    for size in sorted(sizes):
        calls = run(timed, zeros(mesh, size), CALLS_PER_SIZE)
        samples.append(Sample(bytes=size // 4 * 4, seconds=float(np.median(calls["after_arrival_s"]))))
    return samples


def _devices(count: int, on: Platform) -> list[Any]:
    """The first devices of this process on the platform."""
    import jax

    if on == "cuda":
        from jaxcomm.gpu import certificate, core

        if (reason := core.why_off()) is not None:
            cure = core.cure(reason, "measure where there are some")
            raise ProfileError(f"there are no GPUs to measure: {reason}.\n  Cure: {cure}.")
        if (reason := certificate.why_not("process")) is not None:
            raise ProfileError(f"plans do not run on these GPUs: {reason}.\n  Cure: run `jaxcomm check` first.")
    found = [device for device in jax.devices(on) if device.process_index == jax.process_index()]
    if len(found) >= count:
        return found[:count]
    has = f"devices is {count}, but JAX has {len(found)} {on.upper()} devices in this process"
    if on == "cuda":
        raise ProfileError(f"{has}.\n  Cure: measure at most as many.")
    raise ProfileError(
        f"{has}.\n  Cure: start it with XLA_FLAGS=--xla_force_host_platform_device_count={count} and "
        f"PJRT_NPROC={4 * count}, as `jaxcomm profile --devices {count}` does."
    )


def _executors(mesh: Any, sizes: Sequence[int], where: str) -> dict[ExecutorName, Link]:
    """Our psum and XLA's own, which is NCCL's allreduce: mean calls of loops that take turns, the median of some."""
    import jax

    from jaxcomm import collectives

    theirs: Any = jax.lax.psum  # untyped in JAX
    psums: dict[ExecutorName, Callable[[Any, str], Any]] = {"fused": collectives.psum, "nccl": theirs}
    samples: dict[ExecutorName, list[Sample]] = {name: [] for name in psums}
    for size in sizes:
        loops = {name: _counted(mesh, psum) for name, psum in psums.items()}
        values = {name: counted(zeros(mesh, size)).block_until_ready() for name, counted in loops.items()}
        seconds: dict[ExecutorName, list[float]] = {name: [] for name in psums}
        for _ in range(LOOPS):
            for name, counted in loops.items():
                start = time.perf_counter()
                values[name] = counted(values[name]).block_until_ready()
                seconds[name].append((time.perf_counter() - start) / CALLS_PER_SIZE)
        for name in psums:
            samples[name].append(Sample(bytes=size // 4 * 4, seconds=float(np.median(seconds[name]))))
    return {
        "fused": fit(samples["fused"], "all_reduce", mesh.size, f"jaxcomm.psum between {where}", "direct"),
        "nccl": fit(samples["nccl"], "all_reduce", mesh.size, f"jax.lax.psum between {where}"),
    }


def _counted(mesh: Any, psum: Callable[[Any, str], Any]) -> Callable[[Any], Any]:
    """A loop whose length is known when it is compiled, or XLA would ask the host after every call."""
    import jax

    spec: Any = jax.sharding.PartitionSpec

    def loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, CALLS_PER_SIZE, lambda _, x: psum(x, "data"), x)

    mapped = jax.shard_map(loop, mesh=mesh, in_specs=spec("data"), out_specs=spec("data"), check_vma=False)
    return jax.jit(mapped, donate_argnums=0)
