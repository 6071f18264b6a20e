"""What an all-reduce takes over the rails of a job: by their rates, on each alone, and split evenly.

    jaxcomm testbed run jaxcomm/testbed/examples/two_rails.toml -- python benchmarks/rail_shares.py

All ways are taken in one run, by turns: each has a size of its own, by which the share table tells them apart.
"""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any

import jax
import numpy as np
from absl import app, flags

import jaxcomm
from jaxcomm.cli.common import spmd
from jaxcomm.distributed import members
from jaxcomm.distributed.settings import from_environment
from jaxcomm.report.tables import bytes_text, seconds_text, table
from jaxcomm.shares import SharesFrom, in_units

BYTES = flags.DEFINE_integer("bytes", 16 << 20, "of each rank's buffer")
ROUNDS = flags.DEFINE_integer("rounds", 10, "turns of each way", lower_bound=1)
STEP = 4096  # bytes between the sizes of two ways


def ways() -> dict[str, dict[str, int]]:
    """The shares of each way, by rail; by their rates first."""
    rates = {rail.name: rail.rate for rail in from_environment().rails}
    weights = {"by their rates": rates, "evenly": dict.fromkeys(rates, 1)}
    weights |= {f"{name} alone": {name: 1} for name in rates}
    return {way: dict(zip(each, in_units([*each.values()]), strict=True)) for way, each in weights.items()}


def measure(nbytes: int, every: dict[str, dict[str, int]]) -> dict[str, float]:
    """The median of each way's seconds."""
    mesh = spmd.mesh(jax.device_count())
    psum = functools.partial(jaxcomm.psum, axis_name=spmd.AXIS)
    steps: dict[str, tuple[Any, jax.Array]] = {}
    for number, way in enumerate(every):
        mapped = jax.shard_map(psum, mesh=mesh, in_specs=spmd.SPLIT, out_specs=spmd.SPLIT, check_vma=False)
        zeros = np.zeros((mesh.size, (nbytes + number * STEP) // 4), np.float32)
        steps[way] = jax.jit(mapped), spmd.place(zeros, mesh, spmd.SPLIT)
    seconds: dict[str, list[float]] = {way: [] for way in every}
    for turn in range(ROUNDS.value + 1):
        for way, (step, zeros) in steps.items():
            jax.block_until_ready(step(zeros))  # all come to the next one together
            start = time.perf_counter()
            jax.block_until_ready(step(zeros))
            if turn > 0:
                seconds[way].append(time.perf_counter() - start)
    return {way: statistics.median(each) for way, each in seconds.items()}


def main(_: list[str]) -> None:
    """Measures and prints."""
    jax.distributed.initialize()
    every, nbytes = ways(), BYTES.value
    lows = [0, *(nbytes + number * STEP for number in range(1, len(every)))]
    members.connected(planned=[SharesFrom(low, shares) for low, shares in zip(lows, every.values(), strict=True)])
    found = measure(nbytes, every)
    if jax.process_index() > 0:
        return
    both = 1 / sum(1 / seconds for way, seconds in found.items() if way.endswith(" alone"))
    rows = [[way, seconds_text(seconds), f"{both / seconds:.1%}"] for way, seconds in found.items()]
    print(table([f"{bytes_text(nbytes)}, {jax.device_count()} ranks", "median", "of the rails' sum"], rows))


if __name__ == "__main__":
    app.run(main)
