"""How the shares of rails follow a rate that changes in the run, and what calls of 16 MiB take meanwhile.

    jaxcomm testbed run benchmarks/rail_rates.toml -- python benchmarks/rail_rates.py --bytes 8388608

Prints a row for every 25 calls: what they took, and the part of the second rail in what the first process sends to the
second one. In the file above that is 50 % at best, 28.6 % while the rail is slow.
"""

from __future__ import annotations

import functools
import statistics
import time

import jax
import numpy as np
from absl import app, flags

import jaxcomm
from jaxcomm.cli.common import spmd
from jaxcomm.report.tables import seconds_text
from jaxcomm.shares import UNITS

BYTES = flags.DEFINE_integer("bytes", 16 << 20, "of each rank's buffer")
CALLS = flags.DEFINE_integer("calls", 500, "in all", lower_bound=1)
ROW = 25  # calls


def main(_: list[str]) -> None:
    """Calls, and prints on the first process."""
    jax.distributed.initialize()
    mesh = spmd.mesh(jax.device_count())
    psum = functools.partial(jaxcomm.psum, axis_name=spmd.AXIS)
    step = jax.jit(jax.shard_map(psum, mesh=mesh, in_specs=spmd.SPLIT, out_specs=spmd.SPLIT, check_vma=False))
    zeros = spmd.place(np.zeros((mesh.size, BYTES.value // 4), np.float32), mesh, spmd.SPLIT)
    spmd.wait(step(zeros))
    begin, times = time.monotonic(), []
    for number in range(1, CALLS.value + 1):
        start = time.monotonic()
        spmd.wait(step(zeros))
        times.append(time.monotonic() - start)
        if jax.process_index() or number % ROW:
            continue
        rails = {(each["process"], each["rail"]): each for each in jaxcomm.stats().rails}
        share = rails[1, "eth1"]["shares"][-1][1]
        took = seconds_text(statistics.median(times[-ROW:]))
        print(f"{time.monotonic() - begin:6.1f} s  {number:4d} calls  {took:>7}  {share / UNITS:6.1%}", flush=True)


if __name__ == "__main__":
    app.run(main)
