"""The section about several GPUs of one process: compares jaxcomm.psum with jax.lax.psum.

python -m jaxcomm.gpu.checks.devices RESULT.json
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
from jax import lax

import jaxcomm
from jaxcomm import ffi, schedules
from jaxcomm.gpu import fused
from jaxcomm.gpu.checks.expected import by_numpy, different
from jaxcomm.gpu.checks.job import median_seconds, mesh_of, placed, stepped
from jaxcomm.gpu.checks.ranks import CANNOT
from jaxcomm.gpu.checks.rows import Row, write

CALLS = 21
ELEMENTS, TIMED_BYTES = 100_003, (1 << 20, 64 << 20)


def devices() -> Iterator[Row]:
    """Checks sums of two data sets bit for bit against NumPy. Then measures the direct schedule and XLA's own sum."""
    ranks = jax.device_count()
    if ranks < 2:
        print("there is one GPU, and nothing to reduce over")
        sys.exit(CANNOT)
    mesh = mesh_of(jax.devices())
    ours = stepped(mesh, partial(jaxcomm.psum, axis_name="data"))
    yield ["schedule", "type", "calls", "wrong"]
    total = 0
    for dtype in (np.float32, ml_dtypes.bfloat16):
        wrong = 0
        for seed in range(2):
            x = np.random.default_rng(seed).standard_normal((ranks, ELEMENTS)).astype(dtype)
            wrong += different(np.asarray(ours(placed(x, mesh))), by_numpy(schedules.direct(ranks), x))
            fused.check()
        total += wrong
        yield ["direct", np.dtype(dtype).name, "2", str(wrong)]
    yield ["MiB of a rank", "jaxcomm, ms", "XLA, ms", "ratio"]
    for nbytes in TIMED_BYTES:
        ones = placed(np.ones((ranks, nbytes // 4), np.float32), mesh)
        theirs = stepped(mesh, partial(lax.psum, axis_name="data"))
        ours_s, theirs_s = (median_seconds(step, ones, CALLS) for step in (ours, theirs))
        yield [str(nbytes >> 20), f"{ours_s * 1e3:.3f}", f"{theirs_s * 1e3:.3f}", f"{ours_s / theirs_s:.2f}"]
    yield ["calls by the devices' clocks", "median spread of arrivals, ms", "", ""]
    for site in filter(lambda site: site["calls"], ffi.sites()):
        spread = statistics.median(max(arrivals) for arrivals in site["arrivals"])
        yield [f"{site['calls']} of {site['bytes']} bytes", f"{spread * 1e3:.3f}", "", ""]
    if total:
        sys.exit(f"{total} wrong")


if __name__ == "__main__":
    write(devices(), Path(sys.argv[1]))
