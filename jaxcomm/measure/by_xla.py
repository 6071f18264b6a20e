"""Profiles devices on which XLA's own collectives run the sums: times of whole schedules, and the ranks' arrivals."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal

import numpy as np

from jaxcomm import errors
from jaxcomm.errors import ProfileError
from jaxcomm.measure.clocks import Floats
from jaxcomm.measure.psum_loop import WARMUP_STEPS, check_arguments, provenance
from jaxcomm.measure.schedules import JOB_SIZES, Lateness, time_schedules
from jaxcomm.profile.fit import fit
from jaxcomm.profile.racks_and_rails import Sample
from jaxcomm.profile.schema import Collective, Profile

Platform = Literal["cpu", "cuda", "tpu"]
SECONDS: Final = 150.0  # seconds for timing schedules, which XLA compiles anew for each size
_LONGEST_NAME: Final = 64  # maximum length of a host's name in bytes


def measure_by_xla(
    devices: int | None = None,
    sizes: Sequence[int] = JOB_SIZES,
    steps: int = 50,
    *,
    late: Mapping[int, float] | None = None,
    on: Platform = "cpu",
    are_asked: bool = False,
    seconds: float = SECONDS,
    progress: Callable[[float], object] = lambda share: None,
) -> Profile:
    """Profiles sums that XLA's own collectives run: schedules by permutes, late joins, and `lax.psum`.

    The sums take turns, with no rank late and with one rank late. They are timed by the host's clock. The late rank is
    the rank with the longest delay in `late`, or the last rank if `late` is empty. The core does not time XLA's
    collectives, so the host's clock also measures the `arrivals`. In each step all ranks pass a barrier. Each process
    then measures, for each of its ranks, the time from the barrier to the end of the rank's delay in `late`. No sum
    follows. All processes call this function, and get the same profile.

    Args:
      devices: ranks n, at least 2, in a job of one process; None: all devices of the job.
      sizes: bytes per rank, each at least 4; rounded down to whole float32.
      steps: rows of `arrivals`, at least 1.
      late: maps ranks to seconds. Each of these ranks is delayed by its seconds, in the steps only.
      on: the devices' platform.
      are_asked: whether the user gave the sizes. Sizes that the user gave are never left out.
      seconds: time for the schedules, roughly. If it does not suffice, sizes are left out, the largest first.
      progress: called with the finished share, from 0 to 1.

    Raises:
      ProfileError: an argument is invalid, or JAX has too few devices.
    """
    import jax

    from jaxcomm.collectives import active_plan

    late = dict(late or {})
    found = _devices(devices, on)
    check_arguments(len(found), sizes, steps, late)
    if not 0 < seconds < math.inf:
        raise ProfileError(f"seconds is {seconds}; it must be above 0.\n  Cure: change it and measure again.")
    mesh = jax.sharding.Mesh(np.array(found), ("data",))
    with active_plan.use_plan(None), errors.translated():
        timed = time_schedules(
            mesh,
            ["xla"],
            Lateness.of(late, mesh.size),
            sizes,
            may_skip=not are_asked,
            seconds=seconds,
            progress=lambda share: progress(0.9 * share),
        )
        arrivals = _arrivals(mesh, late, steps)
    progress(1.0)
    tables = {each.kind: each.samples for each in timed.schedules}
    samples = [Sample(bytes=each.bytes, seconds=each.together_s) for each in tables["direct"]]
    processes = len({device.process_index for device in found})
    kind = "" if on == "cpu" else f" ({found[0].device_kind})"
    where = f"{len(found)} ranks{kind} in {processes} process{'es' * (processes > 1)}, by XLA's collectives"
    return Profile(
        ranks=len(found),
        link=fit(samples, "all_reduce", len(found), f"direct between {where}", "direct"),
        arrivals=np.round(arrivals, 9).tolist(),
        warmup_dropped=WARMUP_STEPS,
        collective=Collective(bytes=samples[-1].bytes, seconds=tables["lax"][-1].together_s),
        hosts=_hosts(found) if processes > 1 else [],
        timed_schedules=timed,
        provenance=provenance(where, late),
    )


def _arrivals(mesh: Any, late: Mapping[int, float], steps: int) -> Floats:
    """The seconds from a barrier of all ranks to the end of a rank's delay, for each step and rank.

    The earliest rank's seconds are subtracted, so each row has a zero.
    """
    import jax

    from jaxcomm import ffi

    spec: Any = jax.sharding.PartitionSpec  # untyped in JAX
    meet = jax.jit(
        jax.shard_map(lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=spec("data"), out_specs=spec("data"))
    )
    flags = jax.make_array_from_callback(
        (mesh.size,), jax.sharding.NamedSharding(mesh, spec("data")), lambda _: np.ones(1, np.float32)
    )
    own_part = jax.jit(ffi.delay)
    ranks = {device: rank for rank, device in enumerate(mesh.devices.flat)}
    parts = {ranks[shard.device]: shard.data for shard in flags.addressable_shards}
    waits = {rank: np.float32(late.get(rank, 0.0)) for rank in parts}
    found = np.zeros((steps + WARMUP_STEPS, mesh.size))
    with ThreadPoolExecutor(len(parts)) as threads:
        for row in found:
            meet(flags).block_until_ready()
            start = time.perf_counter()

            def ended(result: Any, start: float = start) -> float:
                result.block_until_ready()
                return time.perf_counter() - start

            running = {rank: own_part(part, waits[rank]) for rank, part in parts.items()}
            row[list(running)] = list(threads.map(ended, running.values()))
    whole = _of_all(found[WARMUP_STEPS:])
    after: Floats = whole - whole.min(axis=1, keepdims=True)
    return after


def _hosts(devices: Sequence[Any]) -> list[str]:
    """The name of each rank's host."""
    import jax

    name = np.frombuffer(socket.gethostname().encode()[:_LONGEST_NAME].ljust(_LONGEST_NAME, b"\0"), np.uint8)
    names = np.zeros((jax.process_count(), _LONGEST_NAME))
    names[jax.process_index()] = name
    found = [bytes(row.astype(np.uint8)).rstrip(b"\0").decode(errors="replace") for row in _of_all(names)]
    return [found[device.process_index] for device in devices]


def _of_all(values: Floats) -> Floats:
    """The sum of all processes' values."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return values
    gathered: Any = multihost_utils.process_allgather(values)
    total: Floats = np.asarray(gathered, np.float64).sum(axis=0)
    return total


def _devices(count: int | None, on: Platform) -> list[Any]:
    import jax

    try:
        found = jax.devices(on)
    except RuntimeError as error:
        raise ProfileError(
            f"JAX has no {on.upper()} devices ({error}).\n  Cure: measure where there are some."
        ) from error
    try:
        jax.devices("cpu")
    except RuntimeError:
        raise ProfileError(
            f"JAX_PLATFORMS leaves out the CPU, on which ranks of {on.upper()} devices are made late and wait.\n"
            f"  Cure: JAX_PLATFORMS={on},cpu."
        ) from None
    if count is not None and jax.process_count() > 1:
        raise ProfileError(f"devices is {count}, but several processes measure all devices.\n  Cure: leave it out.")
    if len(found) < (count or 2):
        raise ProfileError(
            f"JAX has {len(found)} {on.upper()} device{'s' * (len(found) != 1)}; {count or 2} are needed.\n"
            "  Cure: measure at least 2 and no more than JAX has, or start more processes by `jaxcomm launch`."
        )
    return found[:count]
