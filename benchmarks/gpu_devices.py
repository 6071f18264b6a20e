"""The section of gpu.py about several GPUs of one process: jaxcomm.psum over them, by plans, beside jax.lax's.

python benchmarks/gpu_devices.py RESULT.json
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from gpu_expected import by_numpy, different
from gpu_rows import Row, tell
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

import jaxcomm
from jaxcomm import ffi, schedules
from jaxcomm.ffi import fused

CALLS = 21
ELEMENTS, TIMED_BYTES = 100_003, (1 << 20, 64 << 20)


def devices() -> Iterator[Row]:
    """Bit for bit against NumPy, twice with other data; then times of the direct schedule and of XLA's own sum."""
    ranks = jax.device_count()
    if ranks < 2:
        yield [f"{ranks} GPU: there is nothing to reduce over"]
        return
    fused.DEVICES = True
    mesh = jax.make_mesh((ranks,), ("data",))
    yield ["schedule", "type", "calls", "wrong"]
    total = 0
    for dtype in (np.float32, ml_dtypes.bfloat16):
        step, wrong = over(mesh, partial(jaxcomm.psum, axis_name="data")), 0
        for seed in range(2):
            x = np.random.default_rng(seed).standard_normal((ranks, ELEMENTS)).astype(dtype)
            wrong += different(np.asarray(step(placed(x, mesh))), by_numpy(schedules.direct(ranks), x))
            fused.check()
        total += wrong
        yield ["direct", np.dtype(dtype).name, "2", str(wrong)]
    yield ["MiB of a rank", "jaxcomm, ms", "XLA, ms", "ratio"]
    for nbytes in TIMED_BYTES:
        x = placed(np.ones((ranks, nbytes // 4), np.float32), mesh)
        ours = seconds(over(mesh, partial(jaxcomm.psum, axis_name="data")), x)
        theirs = seconds(over(mesh, partial(lax.psum, axis_name="data")), x)
        yield [str(nbytes >> 20), f"{ours * 1e3:.3f}", f"{theirs * 1e3:.3f}", f"{ours / theirs:.2f}"]
    yield ["calls by the devices' clocks", "median spread of arrivals, ms", "", ""]
    for site in filter(lambda site: site["calls"], ffi.stats()):
        spread = statistics.median(max(arrivals) for arrivals in site["arrivals"])
        yield [f"{site['calls']} of {site['bytes']} bytes", f"{spread * 1e3:.3f}", "", ""]
    if total:
        sys.exit(f"{total} wrong")


def over(mesh: jax.sharding.Mesh, reduce: Callable[[jax.Array], Any]) -> Callable[[jax.Array], Any]:
    """A jitted reduction of the rows, each on its device."""
    rows = PartitionSpec("data")
    return jax.jit(jax.shard_map(reduce, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))


def placed(x: np.ndarray, mesh: jax.sharding.Mesh) -> jax.Array:
    """Row r on device r."""
    return jax.device_put(jnp.asarray(x), NamedSharding(mesh, PartitionSpec("data")))


def seconds(step: Callable[[jax.Array], Any], x: jax.Array) -> float:
    """Median of some calls after a warm one."""
    jax.block_until_ready(step(x))
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        jax.block_until_ready(step(x))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    tell(devices(), Path(sys.argv[1]))
