"""Means of gradients in which each rank leaves out its own segments, as on a network that loses packets.

This saves no traffic. It shows the effect of such losses on a training, beside `jaxcomm.train.bounded_drop`.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxcomm
from jaxcomm.collectives.axes import as_varying
from jaxcomm.ffi import segments
from jaxcomm.train import Drop

STRIDE = 20  # one of 20 elements is in the sample; only segments below its median may be left out


def lossy_mean(axis: str, drop: Drop, loses: Literal["local", "random"]) -> optax.GradientTransformation:
    """Averages every segment over the ranks that kept it; the state is the number of the step.

    Args:
      axis: axis of the mesh.
      drop: the share of each tensor, and the size of segments.
      loses: "local": each rank leaves out the segments that matter least to it, and only those whose mean magnitude is
        below the median of a sample. "random": each rank loses each segment with the probability of the share.
    """

    def update(updates: Any, step: jax.Array, params: Any = None) -> tuple[Any, jax.Array]:
        del params
        paths, tree = jax.tree_util.tree_flatten_with_path(updates)
        names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
        leaves = [leaf for _, leaf in paths]
        flat = [leaf.reshape(-1) for leaf in leaves]
        key = jax.random.fold_in(jax.random.key(step), jax.lax.axis_index(axis))
        kept: list[Any] = []
        for i, (name, x) in enumerate(zip(names, flat, strict=True)):
            share = drop.share(name, x)
            if not (x.size and share):
                kept.append(None)
            elif loses == "local":
                kept.append(_without_least(x, drop.dropped(name, x), step, drop.segment_bytes))
            else:
                count = segments.count(x, drop.segment_bytes)
                kept.append(jax.random.bernoulli(jax.random.fold_in(key, i), 1 - share, (count,)).astype(jnp.float32))
        masked = [x if keep is None else _scale(x, keep, drop) for x, keep in zip(flat, kept, strict=True)]
        counted = [keep if keep is None else as_varying(keep, x) for keep, x in zip(kept, flat, strict=True)]
        sums, counts = jaxcomm.psum((masked, counted), axis)
        ranks = jax.lax.axis_size(axis)
        means = [
            x / ranks if count is None else _scale(x, jnp.where(count > 0, 1 / count, 0), drop)
            for x, count in zip(sums, counts, strict=True)
        ]
        shaped = [mean.reshape(leaf.shape) for mean, leaf in zip(means, leaves, strict=True)]
        return tree.unflatten(shaped), step + 1

    return optax.GradientTransformation(lambda _: jnp.uint32(0), update)


def _without_least(x: jax.Array, count: int, step: jax.Array, segment_bytes: int) -> jax.Array:
    """1 for each kept segment, 0 for those of the `count` least segments that are below the sampled median."""
    matter = segments.importance(x, segment_bytes)
    least = jnp.argsort(matter)[:count]
    return jnp.ones_like(matter).at[least].set(~(matter[least] < _sampled_median(x, step)))


def _sampled_median(x: jax.Array, step: jax.Array) -> jax.Array:
    """The lower median magnitude of a sample that has one random element of every STRIDE."""
    first = np.arange(0, x.size, STRIDE)
    places = first + jax.random.randint(jax.random.key(step), first.shape, 0, STRIDE)
    return jnp.sort(jnp.abs(x)[jnp.minimum(places, x.size - 1)])[(len(first) - 1) // 2]


def _scale(x: jax.Array, factors: jax.Array, drop: Drop) -> jax.Array:
    return segments.scale(as_varying(x, factors), as_varying(factors, x), drop.segment_bytes)
