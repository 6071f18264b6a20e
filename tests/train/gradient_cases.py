"""Gradients of several ranks whose segments differ in size, and how tests reduce and cut them."""

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
    """One row per rank; segments differ in size by orders of magnitude."""
    random = np.random.default_rng(seed)
    scale = np.repeat(np.exp(random.normal(0, 2, -(-size // WIDTH))), WIDTH)[:size]
    return (random.standard_normal((RANKS, size)) * scale).astype(np.float32)


def run(mesh, step, *operands, check_vma=True):
    """`step` on each rank's row; its results, one per rank."""
    on_rank = lambda *rows: jax.tree.map(lambda y: y[None], step(*jax.tree.map(lambda row: row[0], rows)))  # noqa: E731
    mapped = jax.shard_map(on_rank, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=check_vma)
    return jax.jit(mapped)(*operands)


def by_segment(row):
    """Rows of segments; the short one is filled up with zeros."""
    return np.pad(row, (0, -len(row) % WIDTH)).reshape(-1, WIDTH)


def importance(row):
    sums = np.abs(by_segment(row)).sum(axis=1)
    lengths = np.full(len(sums), WIDTH)
    lengths[-1] = len(row) - WIDTH * (len(sums) - 1)
    return sums / lengths
