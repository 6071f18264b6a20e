"""Computes the exact result of a schedule's program with NumPy. The checks compare all GPU results with it."""

from __future__ import annotations

import numpy as np

from jaxcomm.program.program import Program, compile
from jaxcomm.schedules import Schedule

COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def by_numpy(schedule: Schedule, x: np.ndarray, reduction: str = "sum") -> np.ndarray:
    """The ranks' buffers after a schedule has run. The operations are computed in program order.

    16-bit floats are reduced in float32 and rounded once per operation.
    """
    program = Program.decode(compile(schedule))
    held = x.copy()
    lines = -(-held[0].nbytes // 64)
    per_line = 64 // held.itemsize
    bounds = [-(-lines * c // program.chunks) * per_line for c in range(program.chunks + 1)]
    wide = np.float32 if x.itemsize == 2 and x.dtype.kind not in "iu" else x.dtype
    for op in program.ops:
        chunk = slice(bounds[op.chunk], bounds[op.chunk + 1])
        value = held[op.reads[0], chunk].astype(wide)
        for rank in op.reads[1:]:
            value = COMBINE[reduction](value, held[rank, chunk].astype(wide))
        held[list(op.writes), chunk] = value.astype(held.dtype)
    return held


def different(got: np.ndarray, expected: np.ndarray) -> int:
    """The number of elements whose bits differ."""
    same = np.ascontiguousarray(got).view(np.uint8) == np.ascontiguousarray(expected).view(np.uint8)
    return int((~same.reshape(*got.shape, got.itemsize).all(axis=-1)).sum())
