"""A process in several jobs, one after the other: each is initialized, works, and is shut down.

Words: "lax" or "jaxcomm" for the sums, and for each job the coordinator's "host:port" with its number of processes:
"127.0.0.1:5000/2". A process that a job has no place for ends. The process RESTARTS, if one is named, is started again
for each job; with MEASURES each job measures its links, too.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.backend import clear_backends
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcomm
from jaxcomm.measure.links import measure_links
from tests.processes import jobs

SIZES = (4, 1 << 20)


def work(sums: Any) -> list[bool]:
    """Whether sums over all devices are right."""
    count = jax.device_count()
    mesh = jax.make_mesh((count,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    step = jax.jit(jax.shard_map(lambda x: sums.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P()))
    right = []
    for size in SIZES:
        whole = np.arange(count * size, dtype=np.float32).reshape(count, size) % 1001
        x = jax.make_array_from_callback(whole.shape, NamedSharding(mesh, P("data")), lambda index, of=whole: of[index])
        for _ in range(3):
            right.append(bool((np.asarray(step(x).addressable_data(0))[0] == whole.sum(0)).all()))
    return right


def kept() -> dict[str, int]:
    """The numbers of this process's threads, and of its open files of the kinds that connections use."""
    gc.collect()
    names = []
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the folder itself
            names.append(os.readlink(file))
    kinds = {kind: sum(kind in name for name in names) for kind in ("socket:", "event", "memfd:jaxcomm")}
    return {"threads": len([*Path("/proc/self/task").iterdir()]), **kinds}


def main(sums: str, *generations: str) -> None:
    me = int(os.environ["SLURM_PROCID"])
    for number, generation in enumerate(generations, int(os.environ.get("FIRST", "0"))):
        coordinator, _, processes = generation.partition("/")
        if me >= int(processes):
            return
        bound: dict[str, Any] = {"coordinator_bind_address": coordinator, "initialization_timeout": 60}
        jax.distributed.initialize(coordinator, int(processes), me, **bound)
        if sums == "jaxcomm":
            jaxcomm.init(deadline_s=60)
        right = work(jaxcomm if sums == "jaxcomm" else jax.lax)
        if "MEASURES" in os.environ:
            measure_links()
        stats = jaxcomm.stats()
        gone = [each["process"] for each in stats.gone]
        jobs.report(str(number), right=right, gone=gone, rails=len(stats.rails), **kept())
        jax.distributed.shutdown()
        clear_backends()
        jax.clear_caches()
        if os.environ.get("RESTARTS") == str(me) and len(generations) > 1:
            os.environ["FIRST"] = str(number + 1)
            os.execv(sys.executable, [sys.executable, "-m", "tests.processes.reinitialize", sums, *generations[1:]])


if __name__ == "__main__":
    main(*sys.argv[1:])
