"""Gradients of several ranks whose segments differ in magnitude, and functions that sum and cut the gradients."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

RANKS = 4
SEGMENT = 64  # bytes
WIDTH = SEGMENT // 4
SIZE = 50 * WIDTH + 5  # 51 segments, the last one short


def make_mesh():
    return jax.make_mesh((RANKS,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:RANKS])


def gradients(seed=0, size=SIZE):
    """One row per rank. The magnitudes of segments differ by orders of magnitude."""
    random = np.random.default_rng(seed)
    scale = np.repeat(np.exp(random.normal(0, 2, -(-size // WIDTH))), WIDTH)[:size]
    return (random.standard_normal((RANKS, size)) * scale).astype(np.float32)


def run(mesh, step, *operands, check_vma=True):
    """The results of `step` on each rank's row, stacked by rank."""
    on_rank = lambda *rows: jax.tree.map(lambda y: y[None], step(*jax.tree.map(lambda row: row[0], rows)))  # noqa: E731
    mapped = jax.shard_map(on_rank, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=check_vma)
    return jax.jit(mapped)(*operands)


def by_segment(row):
    """The row cut into segments; the last, short segment is padded with zeros."""
    return np.pad(row, (0, -len(row) % WIDTH)).reshape(-1, WIDTH)


def importance(row):
    sums = np.abs(by_segment(row)).sum(axis=1)
    lengths = np.full(len(sums), WIDTH)
    lengths[-1] = len(row) - WIDTH * (len(sums) - 1)
    return sums / lengths
