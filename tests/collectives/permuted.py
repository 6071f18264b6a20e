"""Compares the results of schedules that XLA's permutes run with the bits of the schedules' programs.

    python -m tests.collectives.permuted 2 3 8      # every schedule, element type and size, for these ranks

The command makes one CPU device per rank, with enough threads.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from tests.quick_compilation import xla_flag

SIZES = [1003, 0, 1, 17, 4096]
DTYPES = ["float32", "bfloat16", "int32"]


def check(schedule: Any, dtype: str, size: int, most: int | None = None, reduction: str = "sum") -> None:
    """Runs an all-reduce of `size` elements; AssertionError if its bits differ from the schedule's program."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import PartitionSpec as P

    from jaxcomm.collectives.permutes.rounds import Ranks, run
    from jaxcomm.collectives.permutes.steps import in_lines
    from jaxcomm.gpu.checks.expected import by_numpy
    from jaxcomm.program.permutes import compile_permutes

    n = schedule.ranks
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:n]), ("x",))
    x = np.asarray(jnp.asarray(np.random.default_rng(n).standard_normal((n, size)) * 100).astype(dtype))
    permutes, ranks = compile_permutes(schedule, most), Ranks(("x",), [range(n)], n)
    combine = {"sum": lax.add, "max": lax.max, "min": lax.min}[reduction]

    def body(v: Any) -> Any:
        flat = v[0]
        if size == 0:
            return v
        return run(permutes, flat, in_lines(size, flat.dtype.itemsize, schedule.num_chunks), ranks, combine)[None]

    got = np.asarray(jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x")))(x))
    expected = by_numpy(schedule, x, reduction) if size else x
    assert (got.view(np.uint8) == expected.view(np.uint8)).all(), (schedule.kind, n, dtype, size)


def everything(ranks: Sequence[int]) -> None:
    """Checks all schedules for these numbers of ranks, and prints the number of runs for each."""
    from tests.schedules.schedule_cases import CASES

    for n in ranks:
        start = time.time()
        for make in CASES.values():
            for dtype in DTYPES:
                for size in SIZES:
                    check(make(n), dtype, size)
        print(
            f"{n} ranks: {len(CASES) * len(DTYPES) * len(SIZES)} runs, same bits, {time.time() - start:.0f} s",
            flush=True,
        )


def use(devices: int) -> None:
    """Gives this process `devices` CPU devices. Call it before JAX is imported."""
    os.environ["XLA_FLAGS"] = (
        f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices} {xla_flag()}"
    )
    os.environ["PJRT_NPROC"] = str(max(32, 2 * devices))
    os.environ["JAX_PLATFORMS"], os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "cpu", "1"


if __name__ == "__main__":
    wanted = [int(argument) for argument in sys.argv[1:]]
    use(max(wanted))
    everything(wanted)
