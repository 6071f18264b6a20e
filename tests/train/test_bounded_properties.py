"""Properties of every sum with drops: at most a share p is dropped, and less important segments are dropped first."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from jaxcomm.collectives.drops.bounded_sums import bounded_sum
from jaxcomm.train import Drop

RANKS, SEGMENT = 3, 64
# Sizes: below one segment, one segment, some segments with a short last one, many segments. Few shares, because each
# choice of shares is compiled.
TENSORS = {"tiny": (5, "float32"), "one": (16, "float32"), "some": (170, "bfloat16"), "many": (640, "float32")}
SHARES = [(0.9, 0.97, 1 / 3, 0.3), (0.5, 0.0, 0.97, 0.05)]


@st.composite
def gradients(draw):
    """The gradients of all ranks, keyed by tensor name. Elements of the tensors with drops are not 0."""
    found = {"count": np.arange(RANKS * 100, dtype=np.int32).reshape(RANKS, 100)}
    for name, (size, dtype) in TENSORS.items():
        random = np.random.default_rng(draw(st.integers(0, 99)))
        values = random.choice([-1, 1], (RANKS, size)) * random.uniform(0.5, 1, (RANKS, size))
        if draw(st.booleans()):  # otherwise segments are about equally important
            values *= np.repeat(10.0 ** random.integers(-3, 4, (RANKS, size // 16 + 1)), 16, axis=1)[:, :size]
        if draw(st.booleans()):
            values[random.integers(RANKS), random.integers(size)] = random.choice([np.nan, np.inf])
        found[name] = np.asarray(jnp.asarray(values, dtype))
    return found


@cache
def summed(shares):
    """A jitted function: the sum of a tree of gradients over the ranks, and the parts that each rank left out."""
    bounds = dict(zip(TENSORS, shares, strict=True)) | {"count": 0.9}
    drop = Drop(None, bounds=bounds, segment_bytes=SEGMENT)
    total = lambda tree: lax.psum(tree, "data")  # noqa: E731
    return jax.jit(jax.vmap(lambda tree: bounded_sum(tree, drop, total, "data"), axis_name="data"))


def in_segments(values):
    """A rank's tensor in float64, one row per segment; the last segment is padded with zeros."""
    width = SEGMENT // values.dtype.itemsize
    flat = values.astype(np.float64)
    return np.pad(flat, (0, -flat.size % width)).reshape(-1, width)


def importance(values):
    lengths = np.minimum(SEGMENT // values.dtype.itemsize, np.arange(values.size, 0, -SEGMENT // values.dtype.itemsize))
    return np.abs(in_segments(values)).sum(axis=1) / lengths


@settings(max_examples=40, deadline=None)
@given(tree=gradients(), shares=st.sampled_from(SHARES))
def test_every_sum_with_drops(tree, shares):
    sums, left_out = summed(shares)(tree)
    assert (np.asarray(sums["count"]) == tree["count"].sum(axis=0)).all()
    assert not np.asarray(left_out["count"]).any()
    for name, share in zip(TENSORS, shares, strict=True):
        values, gone = tree[name], np.asarray(left_out[name])
        lost = np.stack([in_segments(row).any(axis=1) for row in gone])
        for rank in range(RANKS):
            mask = np.repeat(lost[rank], SEGMENT // values.dtype.itemsize)[: values.shape[1]]
            expected = np.where(mask, values[rank].astype(np.float64), 0)
            np.testing.assert_array_equal(gone[rank].astype(np.float64), expected)
        allowed = int(Fraction(repr(share)) * values[0].nbytes / SEGMENT)
        check_lost(values, lost, allowed)
        check_sum(values, lost, np.asarray(sums[name]))


def check_lost(values, lost, allowed):
    assert (lost == lost[0]).all()
    assert lost[0].sum() == allowed
    matter = sum(importance(row) for row in values)
    order = np.where(np.isnan(matter), np.inf, matter)
    if lost[0].any() and not lost[0].all():
        assert order[lost[0]].max() <= order[~lost[0]].min() * (1 + 1e-5)


def check_sum(values, lost, sums):
    assert all(row.tobytes() == sums[0].tobytes() for row in sums)
    width = SEGMENT // values.dtype.itemsize
    keep = ~np.repeat(lost, width, axis=1)[:, : values.shape[1]]
    kept = keep.sum(axis=0)
    with np.errstate(invalid="ignore"):
        expected = np.where(keep, values.astype(np.float64), 0).sum(axis=0)
        scale = np.where(keep, np.abs(values.astype(np.float64)), 0).sum(axis=0)
    hidden = (kept == 0) & np.repeat(~np.isfinite(np.stack([importance(row) for row in values]).sum(axis=0)), width)[
        : kept.size
    ]
    assert np.isnan(sums[0][hidden].astype(np.float64)).all()
    expected[hidden] = np.nan
    finite = np.isfinite(expected)
    error = 2e-2 if values.dtype != np.float32 else 1e-5
    difference = np.abs(sums[0].astype(np.float64)[finite] - expected[finite])
    assert (difference <= error * 3 * scale[finite]).all()
    assert not np.isfinite(sums[0].astype(np.float64)[~finite]).any()
