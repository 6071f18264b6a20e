"""The section about the kernels: bytes read and written per second, beside a copy of as many.

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
import numpy as np

from jaxcomm.ffi import segments
from jaxcomm.gpu import core
from jaxcomm.gpu.checks.rows import Row, verdict, write

ROUNDS, CALLS = 11, 10
NBYTES = 1 << 28  # of an operand of the reduction
GRADIENT = 1 << 30
SEGMENT, STRIDE, DROPPED = 4096, 20, 0.1
REDUCTION_TARGET = 0.90  # of the copy's rate
MASK_TARGET = 1.3  # times the time that the copy's rate needs for the bytes that must move


def kernels() -> Iterator[Row]:
    """The copy first: the better one of a kernel's and the driver's."""
    yield ["kernel", "type", "ms", "GB/s", "floor, ms", "of floor", "target", ""]
    core.register()
    for dtype in (jnp.float32, jnp.bfloat16):
        xs = [_random(NBYTES, dtype, seed) for seed in range(8)]
        copies = {"negation": jax.jit(lambda x: -x), "copy": jax.jit(jnp.copy)}
        times = {name: seconds(copy, xs[0]) for name, copy in copies.items()}
        peak = 2 * NBYTES / min(times.values())
        for name, time_s in times.items():
            yield _row(name, dtype, time_s, 2 * NBYTES, peak, None)
        for count in (2, 8):
            call = jax.ffi.ffi_call("jaxcomm_reduce", jax.typeof(xs[0]))
            time_s = seconds(jax.jit(lambda *xs, call=call: call(*xs, reduction="sum")), *xs[:count])
            yield _row(f"sum of {count}", dtype, time_s, (count + 1) * NBYTES, peak, 1 / REDUCTION_TARGET)
        del xs
        yield from masks(dtype, peak)


def masks(dtype: Any, peak: float) -> Iterator[Row]:
    """The passes of `jaxcomm.train.Drop` over a gradient, and the path that it takes: means, choice, drop."""
    x = _random(GRADIENT, dtype, 0)
    total, seed = segments.count(x, SEGMENT), jnp.uint32(0)
    order = np.random.default_rng(1).permutation(total)
    kept = jnp.asarray(np.sort(order[int(DROPPED * total) :]), jnp.int32)
    keep = jnp.zeros(total).at[kept].set(1)
    packed_bytes = kept.size * SEGMENT
    dropped = GRADIENT - packed_bytes

    def drop_least(x: jax.Array) -> jax.Array:
        means, _ = segments.importance(x, seed, SEGMENT, STRIDE)
        return segments.scale(x, (means > jnp.quantile(means[:1024], DROPPED)).astype(jnp.float32), SEGMENT)

    passes: dict[str, tuple[Callable[..., Any], int]] = {
        "means, sampled median": (lambda x: segments.importance(x, seed, SEGMENT, STRIDE), GRADIENT),
        "means": (lambda x: segments.importance(x, seed, SEGMENT, segments.NO_SAMPLE), GRADIENT),
        "pack": (lambda x: segments.pack(x, kept, SEGMENT), 2 * packed_bytes),
    }
    for name, (run, moved) in passes.items():
        yield _row(name, dtype, seconds(jax.jit(run), x), moved, peak, MASK_TARGET)
    packed = jax.jit(passes["pack"][0])(x)
    unpack = jax.jit(lambda packed: segments.unpack(packed, kept, x.size, SEGMENT))
    yield _row("unpack", dtype, seconds(unpack, packed), packed_bytes + GRADIENT, peak, MASK_TARGET)
    del packed
    time_s, x = seconds_in_place(lambda x: segments.scale(x, keep, SEGMENT), x)
    yield _row("drop, in place", dtype, time_s, dropped, peak, MASK_TARGET)
    time_s, x = seconds_in_place(drop_least, x)
    yield _row("mask path: means, choice, drop", dtype, time_s, GRADIENT + dropped, peak, MASK_TARGET)


def seconds(function: Callable[..., Any], *operands: jax.Array) -> float:
    """The median of some rounds of calls."""
    jax.block_until_ready(function(*operands))
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            result = function(*operands)
        jax.block_until_ready(result)
        times.append((time.perf_counter() - start) / CALLS)
    return statistics.median(times)


def seconds_in_place(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> tuple[float, jax.Array]:
    """The same of a function that takes its operand's memory; also what it left. Its calls follow each other in one
    step, so that one that is short does not wait for Python."""

    @partial(jax.jit, donate_argnums=0)
    def step(x: jax.Array) -> jax.Array:
        for _ in range(CALLS):
            x = function(x)
        return x

    times = []
    for _ in range(1 + ROUNDS):
        start = time.perf_counter()
        x = jax.block_until_ready(step(x))
        times.append((time.perf_counter() - start) / CALLS)
    return statistics.median(times[1:]), x


def _row(name: str, dtype: Any, time_s: float, moved: int, peak: float, target: float | None) -> Row:
    floor = moved / peak
    cells = [f"{time_s * 1e3:.3f}", f"{moved / time_s / 1e9:.0f}", f"{floor * 1e3:.3f}", f"{time_s / floor:.2f}"]
    judged = ["", ""] if target is None else [f"{target:.2f}", verdict(time_s <= target * floor)]
    return [name, jnp.dtype(dtype).name, *cells, *judged]


def _random(nbytes: int, dtype: Any, seed: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (nbytes // jnp.dtype(dtype).itemsize,), dtype)


if __name__ == "__main__":
    write(kernels(), Path(sys.argv[1]))
