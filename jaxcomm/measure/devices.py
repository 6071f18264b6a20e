"""Measures this process's JAX devices with jaxcomm's own psum: its time at each size, and the ranks' arrivals.

On GPUs the module also times NCCL's own allreduce, which a plan may choose.
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
from jaxcomm.measure.schedules import SECONDS, SIZES, Lateness, time_schedules
from jaxcomm.profile.fit import fit
from jaxcomm.profile.racks_and_rails import Sample
from jaxcomm.profile.schema import Collective, ExecutorName, Link, Profile

CALLS_PER_SIZE = 40
LOOPS = 5  # number of timed loops of each executor; a loop has CALLS_PER_SIZE calls
_CALLS_KEPT = 64  # number of latest calls whose times the core keeps

Platform = Literal["cpu", "cuda"]


def measure_devices(
    devices: int,
    sizes: Sequence[int] = SIZES,
    steps: int = 50,
    *,
    late: Mapping[int, float] | None = None,
    on: Platform = "cpu",
    are_asked: bool = False,
    seconds: float = SECONDS,
    progress: Callable[[float], object] = lambda share: None,
) -> Profile:
    """Profiles the first `devices` CPU devices or GPUs of this process.

    The core measures a call's time from the last rank's arrival to the end, without JAX's dispatch. On CPUs whole
    schedules are timed in turns, with no rank late and with one rank late. The late rank is the rank with the longest
    delay in `late`, or the last rank if `late` is empty. α and β are fitted to the direct schedule with no rank late.
    On GPUs the fused executor runs the psum, and each size's sample is the median of 40 warm calls in a jitted loop.
    The psum and NCCL's allreduce also take turns in loops of 40 calls. The arrivals come from `steps` further calls at
    the largest timed size. The loop of these calls has no other work, so only the machine and `late` make ranks late.

    Args:
      devices: ranks n, at least 2; JAX must have n devices.
      sizes: bytes per rank, each at least 4; rounded down to whole float32.
      steps: rows of `arrivals`, at least 1.
      late: maps ranks to seconds. Each of these ranks is delayed by its seconds, in the steps only.
      on: "cpu" or "cuda".
      are_asked: whether the user gave the sizes. Sizes that the user gave are never left out.
      seconds: time for the schedules on CPUs, roughly. If it does not suffice, sizes are left out, the largest first.
      progress: called with the finished share, from 0 to 1.

    Returns:
      The profile. α and β are fitted to the times of the direct schedule, which the psum runs.

    Raises:
      ProfileError: invalid arguments, too few devices, or GPUs that cannot run plans.
    """
    late = dict(late or {})
    check_arguments(devices, sizes, steps, late)
    import jax

    from jaxcomm import ffi
    from jaxcomm.collectives import active_plan

    mesh = jax.sharding.Mesh(np.array(_devices(devices, on)), ("data",))
    where = f"{devices} host devices" if on == "cpu" else f"{devices} GPUs ({mesh.devices[0].device_kind})"
    host = f"{where} on {os.cpu_count()} processors ({platform.machine()}, {ffi.kernel_isa()})"
    timed = None
    with active_plan.use_plan(None):
        if on == "cpu":
            timed = time_schedules(
                mesh,
                ["memory"],
                Lateness.of(late, devices),
                sizes,
                may_skip=not are_asked,
                seconds=seconds,
                progress=lambda share: progress(0.9 * share),
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
    """The median time of warm calls in a jitted loop, for each size."""
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
        raise ProfileError(f"{has}.\n  Cure: measure no more than JAX has.")
    raise ProfileError(
        f"{has}.\n  Cure: start it with XLA_FLAGS=--xla_force_host_platform_device_count={count} and "
        f"PJRT_NPROC={4 * count}, as `jaxcomm profile --devices {count}` does."
    )


def _executors(mesh: Any, sizes: Sequence[int], where: str) -> dict[ExecutorName, Link]:
    """Measures, in turns, loops of jaxcomm's psum and of XLA's psum, which is NCCL's allreduce.

    A size's sample is the mean time of a call in the median loop.
    """
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
    """A loop of fixed length. If the length were an argument, XLA would ask the host after every call."""
    import jax

    spec: Any = jax.sharding.PartitionSpec

    def loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, CALLS_PER_SIZE, lambda _, x: psum(x, "data"), x)

    mapped = jax.shard_map(loop, mesh=mesh, in_specs=spec("data"), out_specs=spec("data"), check_vma=False)
    return jax.jit(mapped, donate_argnums=0)
