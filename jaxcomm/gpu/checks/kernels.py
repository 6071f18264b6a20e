"""The section about the kernel that computes importance masks: compares its memory bandwidth with that of a copy.

python -m jaxcomm.gpu.checks.kernels RESULT.json
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

from jaxcomm.ffi import segments
from jaxcomm.gpu import core
from jaxcomm.gpu.checks.rows import Row, verdict, write

ROUNDS, CALLS = 11, 10
GRADIENT = 1 << 30  # bytes
SEGMENT, DROPPED = 4096, 0.1
MASK_TARGET = 1.3  # largest allowed ratio of the kernel's time to the time of a copy of the same number of bytes


def kernels() -> Iterator[Row]:
    """Times a copy by a kernel (a negation) and by the driver, then compares the mask kernel with the faster one."""
    yield ["kernel", "type", "ms", "GB/s", "floor, ms", "of floor", "target", ""]
    core.register()
    for dtype in (jnp.float32, jnp.bfloat16):
        x = _random(GRADIENT, dtype, 0)
        copies = {"negation": jax.jit(lambda x: -x), "copy": jax.jit(jnp.copy)}
        times = {name: seconds(copy, x) for name, copy in copies.items()}
        peak = 2 * GRADIENT / min(times.values())
        for name, time_s in times.items():
            yield _row(name, dtype, time_s, 2 * GRADIENT, peak, None)
        yield from masks(dtype, x, peak)


def masks(dtype: Any, x: jax.Array, peak: float) -> Iterator[Row]:
    """Times the segment-means kernel of `jaxcomm.train.Drop`, then all three stages of a drop: means, choice, drop."""

    def drop_least(x: jax.Array) -> jax.Array:
        means = segments.importance(x, SEGMENT)
        return segments.scale(x, (means > jnp.quantile(means[:1024], DROPPED)).astype(jnp.float32), SEGMENT)

    means = jax.jit(partial(segments.importance, segment_bytes=SEGMENT))
    yield _row("means", dtype, seconds(means, x), x.nbytes, peak, MASK_TARGET)
    yield _row("mask path: means, choice, drop", dtype, seconds(jax.jit(drop_least), x), 3 * x.nbytes, peak, None)


def seconds(function: Callable[..., Any], *operands: jax.Array) -> float:
    """Seconds per call: the median of the rounds' means."""
    jax.block_until_ready(function(*operands))
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            result = function(*operands)
        jax.block_until_ready(result)
        times.append((time.perf_counter() - start) / CALLS)
    return statistics.median(times)


def _row(name: str, dtype: Any, time_s: float, moved: int, peak: float, target: float | None) -> Row:
    floor = moved / peak
    cells = [f"{time_s * 1e3:.3f}", f"{moved / time_s / 1e9:.0f}", f"{floor * 1e3:.3f}", f"{time_s / floor:.2f}"]
    judged = ["", ""] if target is None else [f"{target:.2f}", verdict(time_s <= target * floor)]
    return [name, jnp.dtype(dtype).name, *cells, *judged]


def _random(nbytes: int, dtype: Any, seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (nbytes // jnp.dtype(dtype).itemsize,), dtype)


if __name__ == "__main__":
    write(kernels(), Path(sys.argv[1]))
