"""The cost of recording arrivals at collectives that XLA runs, in one process or in the processes of a job.

    python benchmarks/arrivals.py
    jaxcomm launch -n 3 -- python benchmarks/arrivals.py

A loop of sums within one compiled step, with and without the records, by turns. `--out FILE` writes the turns' seconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import turns
from jax import lax
from jax.sharding import Mesh

import jaxcomm
from jaxcomm.cli.common import spmd
from jaxcomm.environment import ARRIVALS, EXECUTOR
from jaxcomm.report.tables import bytes_text, seconds_text, table

_SIZES = {1 << 10: 200, 64 << 10: 200, 1 << 20: 50}  # bytes of a rank, and sums of a step


def main() -> None:
    """Prints a row for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out")
    options = parser.parse_args()
    os.environ[EXECUTOR] = "xla"
    if "JAX_COORDINATOR_ADDRESS" in os.environ:
        jax.distributed.initialize()
    rows, records = [], []
    for nbytes, sums in _SIZES.items():
        times: dict[str, list[float]] = {"recorded": [], "not recorded": []}
        steps = {way: _step(nbytes, sums, is_on=way == "recorded") for way in times}
        for _ in range(options.rounds):
            for way, step in steps.items():
                begin = time.perf_counter()
                spmd.wait(step())
                times[way].append((time.perf_counter() - begin) / sums)
        recorded, bare = (statistics.median(each) for each in times.values())
        added = statistics.median(one - other for one, other in zip(*times.values(), strict=True))
        rows.append([bytes_text(nbytes), seconds_text(bare), seconds_text(recorded), f"{added * 1e6:.1f} µs"])
        records.append(turns.row(times, bytes=nbytes))
    if jax.process_index() == 0:
        print(table(["bytes a rank", "not recorded", "recorded", "added to a call"], rows))
        turns.write(options.out, records)


def _step(nbytes: int, sums: int, *, is_on: bool) -> Callable[[], Any]:
    """A compiled step of so many sums, each of which needs the result of the last one."""
    os.environ[ARRIVALS] = str(int(is_on))
    mesh = Mesh(np.array(jax.devices()), (spmd.AXIS,))

    def body(x: Any) -> Any:
        return lax.fori_loop(0, sums, lambda _, y: jaxcomm.pmax(y, spmd.AXIS), x)

    step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=spmd.SPLIT, out_specs=spmd.SPLIT, check_vma=False))
    x = spmd.place(np.zeros((mesh.size, nbytes // 4), np.float32), mesh, spmd.SPLIT)
    spmd.wait(step(x))
    return lambda: step(x)


if __name__ == "__main__":
    main()
