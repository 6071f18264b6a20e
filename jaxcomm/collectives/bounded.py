"""Sums and means of gradients that leave out what matters least: at most a share p of each tensor.

A tensor is cut into segments; a segment matters as much as the mean magnitude of its elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from jaxcomm.ffi import segments

Reduce = Callable[[Any], Any]


@dataclass(frozen=True)
class Loss:
    """How much of a gradient may be left out of a sum, and by whom.

    Policy "agreed": by the sum of what each segment matters to them, the ranks agree on those that nobody sends, so the
    sum carries 1 − p of the bytes. Policy "local": each rank leaves out its own, as a network does that drops packets:
    those that matter least, and only segments whose mean magnitude is below the median of a sample; each segment is
    averaged over the ranks that kept it.

    Attributes:
      bound: the share p of a tensor that may be left out, in [0, 1).
      policy: "agreed" or "local".
      bounds: other shares by tensor, named as `jax.tree_util.keystr` does with `simple=True, separator="/"`.
      segment_bytes: size of a segment, a multiple of 8.
      sample_stride: one of so many elements is in the sample of "local".
      seed: of that sample, a uint32; pass the step's number for another sample in every step.

    Source: Wang et al., "Towards Domain-Specific Network Transport for Distributed DNN Training", section 4.2; that the
    ranks agree is ours.
    """

    bound: float = 0.1
    policy: Literal["agreed", "local"] = "agreed"
    bounds: Mapping[str, float] = field(default_factory=dict, hash=False)
    segment_bytes: int = 4096
    sample_stride: int = 20
    seed: jax.Array | int = 0

    def __post_init__(self) -> None:
        shares = {"bound": self.bound} | {f"bounds[{key!r}]": share for key, share in self.bounds.items()}
        for name, share in shares.items():
            if not 0 <= share < 1:
                raise ValueError(f"Loss: {name} is {share}; it is the share of a tensor, from 0 to below 1")
        if self.policy not in ("agreed", "local"):
            raise ValueError(f'Loss: policy is "{self.policy}"; it is "agreed" or "local"')
        if self.segment_bytes < 8 or self.segment_bytes % 8:
            raise ValueError(f"Loss: segment_bytes is {self.segment_bytes}; it must be a positive multiple of 8")
        if not 1 <= self.sample_stride < 2**32:
            raise ValueError(f"Loss: sample_stride is {self.sample_stride}; it must be from 1 to below 2^32")
        if isinstance(self.seed, int) and not 0 <= self.seed < 2**32:
            raise ValueError(f"Loss: seed is {self.seed}; it must be from 0 to below 2^32")

    def dropped(self, name: str, x: jax.Array) -> int:
        """How many whole segments of a tensor may be left out: only floats of 16, 32 or 64 bits are cut."""
        if not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype.itemsize < 2:
            return 0
        return math.floor(self.bounds.get(name, self.bound) * x.size * x.dtype.itemsize / self.segment_bytes)


def bounded_sum(x: Any, loss: Loss, total: Reduce, ranks: int) -> tuple[Any, Any]:
    """The sum of a tree over the ranks without what the loss leaves out, and what this rank left out.

    Args:
      x: tree of arrays.
      loss: what may be left out; only floating-point arrays of as many segments as that takes are touched.
      total: sums a tree over the ranks; called twice at most.
      ranks: how many there are.

    Returns:
      The sums, with "local" times `ranks` over the ranks that kept a segment, and a tree like `x` of what was left out.
    """
    paths: list[Any]
    tree: Any
    paths, tree = jax.tree_util.tree_flatten_with_path(x)
    leaves = [jnp.asarray(leaf) for _, leaf in paths]
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
    if unknown := sorted(set(loss.bounds) - set(names)):
        raise ValueError(f"Loss: bounds[{unknown[0]!r}] is of no tensor here; they are {', '.join(map(repr, names))}")
    dropped = [loss.dropped(name, leaf) for name, leaf in zip(names, leaves, strict=True)]
    cut = [i for i, count in enumerate(dropped) if count]
    flat = [leaves[i].reshape(-1) for i in cut]
    policy = _agreed if loss.policy == "agreed" else _local
    whole = [leaf for leaf, count in zip(leaves, dropped, strict=True) if not count]
    sums, rest, kept = policy(flat, [dropped[i] for i in cut], whole, loss, total, ranks)
    results, left_out = list(leaves), [jnp.zeros_like(leaf) for leaf in leaves]
    for i, result in zip((i for i, count in enumerate(dropped) if not count), rest, strict=True):
        results[i] = result
    for i, result, keep in zip(cut, sums, kept, strict=True):
        results[i] = result.reshape(leaves[i].shape)
        left_out[i] = segments.scale(leaves[i].reshape(-1), 1 - keep, loss.segment_bytes).reshape(leaves[i].shape)
    return tree.unflatten(results), tree.unflatten(left_out)


def _agreed(
    flat: Sequence[jax.Array], dropped: Sequence[int], whole: Sequence[jax.Array], loss: Loss, total: Reduce, ranks: int
) -> tuple[list[jax.Array], list[jax.Array], list[jax.Array]]:
    del ranks
    size = loss.segment_bytes
    matter = total([segments.importance(x, _seed(loss, x), size, segments.NO_SAMPLE)[0] for x in flat]) if flat else []
    kept = [jnp.sort(jnp.argsort(each)[count:]) for each, count in zip(matter, dropped, strict=True)]
    packed = [segments.pack(x, _as_varying(which, x), size) for x, which in zip(flat, kept, strict=True)]
    sums = total([*packed, *whole])
    unpacked = [
        segments.unpack(part, which, x.size, size) for part, which, x in zip(sums[: len(flat)], kept, flat, strict=True)
    ]
    keep = [jnp.zeros(each.shape).at[which].set(1) for each, which in zip(matter, kept, strict=True)]
    return unpacked, sums[len(flat) :], keep


def _local(
    flat: Sequence[jax.Array], dropped: Sequence[int], whole: Sequence[jax.Array], loss: Loss, total: Reduce, ranks: int
) -> tuple[list[jax.Array], list[jax.Array], list[jax.Array]]:
    size = loss.segment_bytes
    keep = []
    for x, count in zip(flat, dropped, strict=True):
        matter, median = segments.importance(x, _seed(loss, x), size, loss.sample_stride)
        least = jnp.argsort(matter)[:count]
        keep.append(jnp.ones_like(matter).at[least].set(~(matter[least] < median)))
    sums = total([[segments.scale(x, each, size) for x, each in zip(flat, keep, strict=True)], keep, list(whole)])
    averaged = [
        segments.scale(part, jnp.where(kept > 0, ranks / kept, 0), size)
        for part, kept in zip(sums[0], sums[1], strict=True)
    ]
    return averaged, sums[2], keep


def _seed(loss: Loss, x: jax.Array) -> jax.Array:
    return _as_varying(jnp.asarray(loss.seed, jnp.uint32), x)


def _as_varying(value: jax.Array, x: jax.Array) -> jax.Array:
    """`value`, as if it differed between the ranks as `x` does: operands of one call must vary alike."""
    missing = jax.typeof(x).manual_axis_type.varying - jax.typeof(value).manual_axis_type.varying
    return lax.pcast(value, tuple(sorted(missing)), to="varying") if missing else value
