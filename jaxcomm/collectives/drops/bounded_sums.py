"""Sums and means of gradients without their unimportant segments. At most a share p of each tensor is left out.

A tensor is cut into segments; a segment's importance is the mean magnitude of its elements.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxcomm.collectives import axes
from jaxcomm.collectives.drops.drop import Drop
from jaxcomm.collectives.leaves import leaf_name
from jaxcomm.collectives.platforms import rules_of
from jaxcomm.collectives.primitive import replace_collectives
from jaxcomm.collectives.request import AllowedDrop
from jaxcomm.environment import udp_priorities
from jaxcomm.ffi import segments

Reduce = Callable[[Any], Any]
Arrays = list[jax.Array]


def bounded_sum(
    x: Any, drop: Drop, total: Reduce, axis_name: Any, groups: Any = None, *, feeds_back: bool = False
) -> tuple[Any, Any]:
    """Sums a tree over the ranks without the dropped parts; also returns the parts that this rank left out.

    Args:
      x: tree of arrays.
      drop: the part that may be left out. Arrays that are too small to lose a segment, and arrays that are not floats,
        are summed whole.
      total: sums a tree over the ranks; called twice at most.
      axis_name: the axes that distinguish this rank from the other ranks.
      groups: groups of indices along the axis, each with a sum of its own.
      feeds_back: whether the caller adds the parts that this rank left out to its next sum.

    Returns:
      The sums, and a tree like `x` of the parts that this rank left out. With policy "network", and with "deadline"
      without `feeds_back`, a sum that lost parts is the number of ranks times the mean of the parts that arrived, and
      this tree is zero. With "deadline" and `feeds_back`, lost parts count as zeros, and this tree holds them.

    Raises:
      ValueError: a bound has no tensor, or a tensor has no bound.
      NotImplementedError: the sum is differentiated.
    """
    _start_gpus()
    paths: list[Any]
    tree: Any
    paths, tree = jax.tree_util.tree_flatten_with_path(x)
    leaves = [jnp.asarray(leaf) for _, leaf in paths]
    names = [leaf_name(path) for path, _ in paths]
    drop.check(names)
    cut = [i for i, leaf in enumerate(leaves) if drop.dropped(names[i], leaf)]
    rest = [i for i in range(len(leaves)) if i not in set(cut)]
    flat, whole = [_constant(leaves[i]).reshape(-1) for i in cut], [leaves[i] for i in rest]
    if drop.policy == "agreed":
        dropped = [drop.dropped(names[i], leaves[i]) for i in cut]
        sums, exact, kept = _agreed(flat, dropped, whole, drop, total)
    else:
        limit = 0.0 if drop.seconds == "auto" else float(drop.seconds)
        in_time = drop.policy == "deadline"
        shares = [drop.share(names[i], leaves[i]) for i in cut]
        how = drop.segment_bytes, limit if in_time else None, not (in_time and feeds_back)
        sums, kept = list(flat), list(flat)
        for priority, places in _by_priority([names[i] for i in cut], drop):
            allowed = AllowedDrop(tuple(shares[place] for place in places), *how, priority)
            found = _lossy([flat[place] for place in places], drop, allowed, axis_name, groups)
            for place, each, keep in zip(places, *found, strict=True):
                sums[place], kept[place] = each, keep
        exact = total(whole) if whole else []
    results, left_out = list(leaves), [jnp.zeros_like(leaf) for leaf in leaves]
    for i, result in zip(rest, exact, strict=True):
        results[i] = result
    for i, x, result, keep in zip(cut, flat, sums, kept, strict=True):
        results[i] = result.reshape(leaves[i].shape)
        left_out[i] = _scale(x, 1 - keep, drop).reshape(leaves[i].shape)
    return tree.unflatten(results), tree.unflatten(left_out)


@functools.cache
def _start_gpus() -> None:
    """Registers the GPU core's operations on segments, once; imports no GPU module if JAX has no GPU."""
    try:
        jax.devices("cuda")
    except RuntimeError:
        return
    rules_of("cuda").register_segments()


@jax.custom_jvp
def _constant(x: jax.Array) -> jax.Array:
    return x


@_constant.defjvp
def _refuse(primals: Any, tangents: Any) -> Any:
    del primals, tangents
    raise NotImplementedError(
        "jaxcomm: a sum with a drop is for gradients; it cannot be differentiated itself.\n"
        "  Cure: take the gradient first and sum that, or leave out `drop` in the differentiated function."
    )


def _agreed(
    flat: Sequence[jax.Array], dropped: Sequence[int], whole: Sequence[jax.Array], drop: Drop, total: Reduce
) -> tuple[Arrays, Arrays, Arrays]:
    size = drop.segment_bytes
    matter = total([segments.importance(x, size) for x in flat]) if flat else []
    kept = [jnp.sort(jnp.argsort(each)[count:]) for each, count in zip(matter, dropped, strict=True)]
    packed = [segments.pack(x, axes.as_varying(which, x), size) for x, which in zip(flat, kept, strict=True)]
    sums = total([*packed, *whole])
    unpacked = [
        segments.unpack(part, which, x.size, size) for part, which, x in zip(sums[: len(flat)], kept, flat, strict=True)
    ]
    keep = [jnp.zeros(each.shape).at[which].set(1) for each, which in zip(matter, kept, strict=True)]
    unpacked = [_not_finite(*each, drop) for each in zip(unpacked, matter, keep, strict=True)]
    return unpacked, sums[len(flat) :], keep


def _not_finite(result: jax.Array, matter: jax.Array, keep: jax.Array, drop: Drop) -> jax.Array:
    """The sums, with NaN in every dropped segment that is not finite.

    A dropped segment can be non-finite only if there are more non-finite segments than kept segments.
    """
    lost = (keep == 0) & ~jnp.isfinite(matter)
    factors = jnp.where(lost, jnp.nan, jnp.ones_like(keep))
    known: jax.Array = lax.cond(lost.any(), lambda x: _scale(x, factors, drop), lambda x: x, result)
    return known


def _by_priority(names: Sequence[str], drop: Drop) -> list[tuple[int | None, list[int]]]:
    """For each priority, the places of the tensors that have it. The tensors of a priority are summed in one call."""
    last = udp_priorities() - 1
    places: dict[int | None, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(min(int(drop.priorities.get(name, last)), last) if last else None, []).append(place)
    return sorted(places.items(), key=lambda item: item[0] or 0)


def _lossy(
    flat: Sequence[jax.Array], drop: Drop, allowed: AllowedDrop, axis_name: Any, groups: Any
) -> tuple[Arrays, Arrays]:
    """Sums arrays between processes over UDP. Only segments of at most their tensor's median importance may be lost.

    Returns the sums, and for each array a mask that is 0 for those of this rank's segments that are reported as lost.
    """
    if not flat:
        return [], []
    important = []
    for x in flat:
        matter = segments.importance(x, drop.segment_bytes)
        important.append((~(matter <= jnp.median(matter))).astype(jnp.uint8))
    over = partial(lax.psum, axis_name=axis_name, axis_index_groups=groups)
    lost, *sums = replace_collectives(over, "", drop=allowed)([jnp.concatenate(important), *flat])
    if allowed.makes_up:  # nothing is reported
        return sums, [jnp.ones(each.shape) for each in important]
    bounds = itertools.accumulate(each.size for each in important[:-1])
    return sums, [1.0 - each for each in jnp.split(lost, list(bounds))]


def _scale(x: jax.Array, factors: jax.Array, drop: Drop) -> jax.Array:
    return segments.scale(axes.as_varying(x, factors), axes.as_varying(factors, x), drop.segment_bytes)
