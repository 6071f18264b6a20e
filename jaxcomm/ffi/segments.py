"""The core's operations on segments of a gradient: computing their importance, packing, unpacking and scaling them.

A segment is `segment_bytes` bytes of one flat array; the array's last segment may be shorter. The core for CPUs has all
these operations, and the CUDA core has only `importance`. On other platforms JAX's operations compute the same results.
These functions are for gradients and are not differentiable.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcomm import ffi

_platforms = ["cpu"]  # platforms on which "jaxcomm_importance" is called


def add_platform(name: str) -> None:
    """Makes `importance` use the custom call "jaxcomm_importance" on one more platform.

    The platform's back end must have registered this custom call with XLA.

    Args:
      name: JAX's name of the platform.
    """
    _platforms.append(name)


def count(x: jax.Array, segment_bytes: int) -> int:
    """The number of segments of `x`."""
    return math.ceil(x.size * x.dtype.itemsize / segment_bytes)


def importance(x: jax.Array, segment_bytes: int) -> jax.Array:
    """The mean magnitude of each segment.

    Args:
      x: flat floats of 16, 32 or 64 bits.
      segment_bytes: a multiple of the element's size.

    Returns:
      float32 [segments].
    """
    types = _like(x, (count(x, segment_bytes),), jnp.float32)
    call = _call("importance", types, segment_bytes=np.int64(segment_bytes))

    def reference(x: jax.Array) -> jax.Array:
        rows = jnp.abs(_rows(x, segment_bytes)).astype(jnp.promote_types(x.dtype, jnp.float32))
        segments, width = rows.shape
        lengths = np.full(segments, width)
        lengths[-1] = x.size - (segments - 1) * width
        return (rows.sum(axis=1) / lengths).astype(jnp.float32)

    means: jax.Array = lax.platform_dependent(x, default=reference, **dict.fromkeys(_platforms, call))
    return means


def pack(x: jax.Array, indices: jax.Array, segment_bytes: int) -> jax.Array:
    """The segments with these ascending indices, one after the other. The last segment of `x` is padded with zeros.

    Raises:
      JaxRuntimeError: on CPUs, the indices do not ascend, or an index is too large. On other platforms the step does
        not fail, and another segment takes the place of a segment that does not exist.
    """
    shape = (indices.size * segment_bytes // x.dtype.itemsize,)
    call = _call("pack", _like(x, shape, x.dtype), segment_bytes=np.int64(segment_bytes))

    def reference(x: jax.Array, indices: jax.Array) -> jax.Array:
        return _rows(x, segment_bytes)[indices].reshape(shape)

    packed: jax.Array = _on_this_platform(x, indices, call=call, default=reference)
    return packed


def unpack(packed: jax.Array, indices: jax.Array, size: int, segment_bytes: int) -> jax.Array:
    """The inverse of `pack`: an array of `size` elements. Segments that were not packed are 0."""
    call = _call("unpack", _like(packed, (size,), packed.dtype), segment_bytes=np.int64(segment_bytes))

    def reference(packed: jax.Array, indices: jax.Array) -> jax.Array:
        width = segment_bytes // packed.dtype.itemsize
        rows = jnp.zeros((math.ceil(size / width), width), packed.dtype)
        return rows.at[indices].set(packed.reshape(-1, width)).reshape(-1)[:size]

    x: jax.Array = _on_this_platform(packed, indices, call=call, default=reference)
    return x


def scale(x: jax.Array, factors: jax.Array, segment_bytes: int) -> jax.Array:
    """Multiplies every segment by its factor (float32). The factor 0 gives zeros, even for NaN and infinity."""
    call = _call("scale", jax.typeof(x), aliases={0: 0}, segment_bytes=np.int64(segment_bytes))

    def reference(x: jax.Array, factors: jax.Array) -> jax.Array:
        rows, column = _rows(x, segment_bytes), factors[:, None]
        wide = rows.astype(jnp.promote_types(x.dtype, jnp.float32))
        scaled = jnp.where(column == 0, 0, wide * column).astype(x.dtype)
        return scaled.reshape(-1)[: x.size]

    scaled: jax.Array = _on_this_platform(x, factors, call=call, default=reference)
    return scaled


def _on_this_platform(*operands: jax.Array, call: Callable[..., Any], default: Callable[..., Any]) -> Any:
    return lax.platform_dependent(*operands, default=default, cpu=call)


def _call(name: str, types: Any, aliases: dict[int, int] | None = None, **attributes: Any) -> Callable[..., Any]:
    ffi.register()
    call = jax.ffi.ffi_call(f"jaxcomm_{name}", types, input_output_aliases=aliases, vmap_method="sequential")
    return partial(call, **attributes)


def _like(x: jax.Array, shape: tuple[int, ...], dtype: Any) -> Any:
    """The type of a result that varies over the same mesh axes as `x`."""
    plain = jax.typeof(jnp.zeros(shape, dtype))
    return plain.update(manual_axis_type=jax.typeof(x).manual_axis_type)


def _rows(x: jax.Array, segment_bytes: int) -> jax.Array:
    width = segment_bytes // x.dtype.itemsize
    return jnp.pad(x, (0, -x.size % width)).reshape(-1, width)
