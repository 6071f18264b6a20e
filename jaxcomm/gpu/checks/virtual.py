"""The sections about the fused kernel on one GPU. A section yields the rows of a table, and fails if a result is wrong.

python -m jaxcomm.gpu.checks.virtual SECTION RESULT.json
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxcomm import schedules
from jaxcomm.environment import GPU_SMALL, is_on
from jaxcomm.errors import JaxcommError
from jaxcomm.gpu import fused
from jaxcomm.gpu.checks.expected import COMBINE, by_numpy, different
from jaxcomm.gpu.checks.rows import Row, verdict, write
from jaxcomm.schedules import Schedule

RANKS, LATE, CALLS = 8, 3, 21
DELAY_US, LATE_BYTES = 2000, (4 << 20, 64 << 20)  # the late rank's delay in microseconds, and bytes per rank
SMALL = is_on(GPU_SMALL)
SIZES = [1003] if SMALL else [1003, 1 << 20]
MATRIX = {
    "ring": schedules.ring(RANKS),
    "halving_doubling": schedules.halving_doubling(RANKS),
    "direct": schedules.direct(RANKS),
    "broadcast": schedules.broadcast(RANKS, LATE),
    "straggler, n - 1 chunks": schedules.straggler(RANKS, LATE, RANKS - 1),
    "straggler, 4n chunks": schedules.straggler(RANKS, LATE, 4 * RANKS),
    "hybrid": schedules.hybrid(RANKS, LATE, 3 * RANKS, RANKS),
    "stragglers, two late": schedules.stragglers(RANKS, [LATE, 5], 2 * RANKS),
    "chain of two": schedules.chain(RANKS, [LATE, 5], 2 * RANKS),
}
FLOATS = (np.float32, ml_dtypes.bfloat16, np.float16, np.float64)
INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)


def exact() -> Iterator[Row]:
    """Checks two calls against NumPy. The second call reuses the first call's flags. Results go to poisoned memory."""
    yield ["schedule", "type", "elements of a rank", "calls", "wrong"]
    total = 0
    for name, schedule in MATRIX.items():
        for dtype in FLOATS[:2]:
            for elements in SIZES:
                wrong = _wrong(schedule, "sum", dtype, elements)
                total += wrong
                yield [name, np.dtype(dtype).name, str(elements), "2", str(wrong)]
    _hold(total)


def types() -> Iterator[Row]:
    """Compares every element type and reduction with NumPy, with one schedule."""
    yield ["type", "reduction", "calls", "wrong"]
    total = 0
    for dtype in (*FLOATS, *INTEGERS, np.complex64, np.complex128):
        for reduction in COMBINE if np.dtype(dtype).kind != "c" else ("sum",):
            wrong = _wrong(MATRIX["straggler, n - 1 chunks"], reduction, dtype, 10_007)
            total += wrong
            yield [np.dtype(dtype).name, reduction, "2", str(wrong)]
    _hold(total)


def late() -> Iterator[Row]:
    """Measures each schedule's time from the late rank's arrival to the end, by the device's clock."""
    yield ["schedule", "KiB of a rank", "ms late", "ms after arrival", "of ring's", "target", ""]
    delays = np.zeros(RANKS, np.int32)
    delays[LATE] = DELAY_US
    for nbytes in LATE_BYTES:
        x, ring = jnp.ones((RANKS, nbytes // 4), jnp.float32), 0.0
        for name in ("ring", "straggler, n - 1 chunks", "straggler, 4n chunks"):
            before = _calls(nbytes)
            step = jax.jit(lambda x, s=MATRIX[name]: fused.virtual_psum(x, s, delays_us=delays))
            for _ in range(CALLS):
                jax.block_until_ready(step(x))
            fused.check()
            site = next(s for s in fused.sites() if s["bytes"] == nbytes and s["calls"] - before[s["plan"]] == CALLS)
            seconds = statistics.median(site["after_arrival_s"][-CALLS:])
            arrival = statistics.median(arrivals[LATE] for arrivals in site["arrivals"][-CALLS:])
            ring = ring or seconds
            row = [name, str(nbytes >> 10), f"{arrival * 1e3:.2f}", f"{seconds * 1e3:.3f}", f"{seconds / ring:.2f}"]
            yield [*row, *(["", ""] if name == "ring" else ["0.70", verdict(seconds <= 0.7 * ring)])]


def _calls(nbytes: int) -> dict[str, int]:
    """The number of calls of this size under each plan; 0 for a plan without calls."""
    called = dict.fromkeys((schedule.kind for schedule in MATRIX.values()), 0)
    return called | {site["plan"]: site["calls"] for site in fused.sites() if site["bytes"] == nbytes}


def deadline() -> Iterator[Row]:
    """Makes a call in which one rank is 300 ms late and the deadline is 50 ms.

    The error must name the rank, no rank may have a sum, and the next call must be right.
    """
    yield ["message", "sums", "next call"]
    x = random(1000, np.float32, 0)
    step = jax.jit(lambda x, delays: fused.virtual_psum(x, MATRIX["ring"], delays_us=delays))
    none = np.zeros(RANKS, np.int32)
    jax.block_until_ready(step(x, none))
    fused.set_deadline(0.05)
    delays = none.copy()
    delays[LATE] = 300_000
    sums = int((~np.isnan(np.asarray(step(x, delays)))).sum())
    try:
        fused.check()
    except JaxcommError as error:
        message = str(error)
    else:
        raise AssertionError("no error was raised")
    wrong = different(np.asarray(step(x, none)), by_numpy(MATRIX["ring"], x))
    yield [message, str(sums), "wrong" if wrong else "right"]
    fused.check()
    assert message.startswith("DeadlineError: psum #2 ") and f"rank {LATE} of {RANKS} has not arrived" in message
    _hold(wrong + sums)


def random(elements: int, dtype: Any, seed: int) -> np.ndarray:
    """Random operands: uniform integers over the type's whole range, or normally distributed floats."""
    generator, kind = np.random.default_rng([elements, seed]), np.dtype(dtype).kind
    shape = (RANKS, elements)
    if kind in "iu":
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if kind == "c":
        return (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype)
    return generator.standard_normal(shape).astype(dtype)


def _wrong(schedule: Schedule, reduction: str, dtype: Any, elements: int) -> int:
    step = jax.jit(lambda x: fused.virtual_psum(x, schedule, reduction=reduction))
    wrong = 0
    for seed in range(2):
        x = random(elements, dtype, seed)
        on_device = jnp.asarray(x)
        assert on_device.dtype == x.dtype
        _poison(on_device)
        wrong += different(np.asarray(step(on_device)), by_numpy(schedule, x, reduction))
        fused.check()
    return wrong


def _poison(x: jax.Array) -> None:
    """Sets all bits (NaN for floats) of the memory that the next result of this size is likely to get."""
    ones = jnp.full(x.nbytes, 0xFF, jnp.uint8)
    jax.block_until_ready(ones)


def _hold(wrong: int) -> None:
    if wrong:
        sys.exit(f"{wrong} wrong")


SECTIONS = {"exact": exact, "types": types, "late": late, "deadline": deadline}

if __name__ == "__main__":
    write(SECTIONS[sys.argv[1]](), Path(sys.argv[2]))
