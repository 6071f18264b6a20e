"""Segments of gradients: the core's custom calls against the same in JAX, and what they must not do."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomm.ffi import segments

DTYPES = ("float16", "bfloat16", "float32", "float64")


@pytest.fixture(scope="module", autouse=True, params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def platform(request):
    with jax.enable_x64(True), jax.default_device(jax.devices(request.param)[0]):
        yield request.param


@st.composite
def gradients(draw):
    dtype = draw(st.sampled_from(DTYPES))
    size = draw(st.integers(1, 700))
    values = np.random.default_rng(draw(st.integers(0, 99))).standard_normal(size) * 10.0 ** draw(st.integers(-3, 3))
    return jnp.asarray(values, dtype)


@pytest.fixture(scope="module")
def reference():
    """Calls a function of `segments` as another platform would lower it."""

    def call(function, *args):
        original = jax.lax.platform_dependent
        jax.lax.platform_dependent = lambda *operands, default, **calls: default(*operands)
        try:
            return function(*args)
        finally:
            jax.lax.platform_dependent = original

    return call


SIZES = st.sampled_from([8, 64, 256, 4096])


@settings(max_examples=30, deadline=None)
@given(x=gradients(), size=SIZES)
def test_importance_is_the_mean_magnitude(reference, x, size):
    means = segments.importance(x, size)
    np.testing.assert_allclose(means, reference(segments.importance, x, size), rtol=2e-6)
    width = size // x.dtype.itemsize
    slow = [np.abs(np.asarray(x[i : i + width], np.float64)).mean() for i in range(0, x.size, width)]
    np.testing.assert_allclose(means, slow, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(x=gradients(), size=SIZES, data=st.data())
def test_unpacking_what_was_packed_is_zero_elsewhere(reference, x, size, data):
    total = segments.count(x, size)
    chosen = data.draw(st.lists(st.integers(0, total - 1), unique=True, min_size=1))
    kept = jnp.asarray(sorted(chosen), jnp.int32)
    packed = segments.pack(x, kept, size)
    assert packed.size * x.dtype.itemsize == len(chosen) * size
    np.testing.assert_array_equal(packed, reference(segments.pack, x, kept, size))
    back = segments.unpack(packed, kept, x.size, size)
    np.testing.assert_array_equal(back, reference(segments.unpack, packed, kept, x.size, size))
    mask = np.isin(np.arange(x.size) // (size // x.dtype.itemsize), chosen)
    np.testing.assert_array_equal(back, np.where(mask, x, 0).astype(x.dtype))


@settings(max_examples=30, deadline=None)
@given(x=gradients(), size=SIZES, seed=st.integers(0, 99))
def test_scale_multiplies_each_segment_by_its_factor(reference, x, size, seed):
    choices = np.random.default_rng(seed).choice([0.0, 1.0, 0.5, 1 / 3], segments.count(x, size))
    factors = jnp.asarray(choices, jnp.float32)
    scaled = segments.scale(x, factors, size)
    np.testing.assert_array_equal(scaled, reference(segments.scale, x, factors, size))
    assert scaled.dtype == x.dtype


def test_a_dropped_segment_is_zero_even_if_it_was_not_finite():
    x = jnp.asarray([jnp.nan, jnp.inf, 1, 2], jnp.float32)
    np.testing.assert_array_equal(segments.scale(x, jnp.asarray([0.0, 1.0], jnp.float32), 8), [0, 0, 1, 2])


@pytest.mark.parametrize("kept", [[1, 0], [0, 0], [0, 4], [-1, 0]])
def test_indices_that_do_not_ascend_or_do_not_exist_are_refused(platform, kept):
    if platform == "cuda":
        pytest.skip("a step does not stop for them there")
    x = jnp.arange(8, dtype=jnp.float32)
    with pytest.raises(Exception, match=r"pack: indices\[\d\] is -?\d; indices must ascend, below 4"):
        segments.pack(x, jnp.asarray(kept, jnp.int32), 8).block_until_ready()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: segments.importance(x, 30), "importance: segments of 30 bytes do not fit"),
        (lambda x: segments.scale(x, jnp.ones(6, jnp.float32), 6), "one factor per segment of whole elements"),
        # The product of 4 and 2^62 is 0 in 64 bits.
        (lambda x: segments.unpack(x[:0], jnp.arange(4, dtype=jnp.int32), 8, 2**62), "must hold the chosen segments"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(platform, call, message):
    if platform == "cuda" and "importance" not in message:
        pytest.skip("only the importance is the core's there")
    with pytest.raises(Exception, match=message):
        jax.block_until_ready(call(jnp.arange(8, dtype=jnp.float32)))


def test_a_batch_is_cut_row_by_row():
    x = jnp.arange(12, dtype=jnp.float32).reshape(3, 4)
    kept = jnp.asarray([[0], [1], [0]], jnp.int32)
    packed = jax.vmap(lambda row, which: segments.pack(row, which, 8))(x, kept)
    np.testing.assert_array_equal(packed, [[0, 1], [6, 7], [8, 9]])
    means = jax.vmap(lambda row: segments.importance(row, 8))(x)
    np.testing.assert_array_equal(means, x.reshape(3, 2, 2).mean(axis=2))


def test_integers_have_no_importance():
    with pytest.raises(Exception, match="gradients must be floats of 16, 32 or 64 bits"):
        jax.block_until_ready(segments.importance(jnp.arange(8), 8))
