"""One rank of a part of benchmarks/gpu_nccl.py in which the fused executor runs in NCCL's windows.

    python benchmarks/gpu_nccl_windows.py windows 0 4 /tmp/folder      # as gpu_nccl_rank.py

It ends with 0 if the rank found what it should, and with 77 where the machine cannot do it, saying why.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gpu_expected import by_numpy  # noqa: E402
from gpu_nccl import CANNOT  # noqa: E402
from gpu_nccl_rank import DTYPES, ELEMENTS, Job, Rows, check, data, main, schedules_of  # noqa: E402

from jaxcomm.ffi import fused, nccl, windows  # noqa: E402
from jaxcomm.schedules import Schedule  # noqa: E402

LATE_S, LATE_BYTES, CALLS = 0.005, 64 << 20, 21


def in_windows(job: Job) -> Rows:
    """Every schedule's sums, twice: flags count on."""
    job.join("all")
    rows = bits(job)
    nccl.leave("all")
    return rows


def multicast(job: Job) -> Rows:
    """The same by a switch, on a GPU of its own; and the time after a late rank's arrival, without it and with it."""
    import jax

    with jax.default_device(jax.devices("cuda")[job.rank]):
        job.join("all", device=job.rank)
        fused.MULTICAST = True
        rows = bits(job)
        for name in ("ring", "straggler", "direct join"):
            for how in ("to each rank", "by a switch"):
                fused.MULTICAST = how == "by a switch"
                seconds = after_arrival(job, schedules_of(job.ranks)[name])
                rows.append([f"{name}, {LATE_BYTES >> 20} MiB, stores {how}", f"{seconds * 1e3:.3f} ms after arrival"])
        job.meet("measured")
        nccl.leave("all", device=job.rank)
    return rows


def bits(job: Job) -> Rows:
    """What every schedule gives, against NumPy."""
    for name, schedule in schedules_of(job.ranks).items():
        for dtype in DTYPES:
            step = summing(schedule)
            for seed in (7, 8):
                whole = data(job.ranks, ELEMENTS, dtype, seed)
                check(f"{name}, {dtype}", np.asarray(run(step, whole[job.rank])), by_numpy(schedule, whole)[0])
    fused.check()
    return [[name, "same bits: " + ", ".join(DTYPES)] for name in schedules_of(job.ranks)]


def after_arrival(job: Job, schedule: Schedule) -> float:
    """Median seconds between the last rank's arrival, which is late, and the end, by the devices' clocks."""
    import jax.numpy as jnp

    step, x = summing(schedule), jnp.ones(LATE_BYTES // 4, jnp.float32)
    run(step, x)
    fused.reset_stats()
    for _ in range(CALLS):
        if job.rank == job.ranks - 1:
            time.sleep(LATE_S)
        run(step, x)
    fused.check()
    (site,) = (site for site in fused.stats() if site["plan"] == schedule.kind and site["bytes"] == LATE_BYTES)
    return float(np.median(site["after_arrival_s"]))


def summing(schedule: Schedule) -> Callable[[Any], Any]:
    """A step that sums over the group, compiled once."""
    import jax

    return jax.jit(lambda x: windows.all_reduce(x, schedule, "all"))


def run(step: Callable[[Any], Any], x: Any) -> Any:
    """What a step gives, when it is there. Ends this rank if the machine cannot do it."""
    try:
        return step(x).block_until_ready()
    except Exception as error:
        if "UNIMPLEMENTED" not in str(error):
            raise
        print(str(error).splitlines()[0])
        sys.exit(CANNOT)


WORK = {"windows": in_windows, "multicast": multicast}

if __name__ == "__main__":
    main(WORK)
