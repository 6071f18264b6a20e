"""How soon ranks that average within groups come to agree, what is left of disagreement, and how far apart they stay.

In iteration t, W_t replaces every rank's value by its group's mean; J is the mean of all. See `Groups` for ρ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

AGREED: Final = 1e-6  # ρ of a period that counts as none: training does not notice the rest
DONE: Final = 1e-9  # of a product of many periods


def contraction(iterations: Sequence[Sequence[Sequence[int]]], ranks: int) -> float:
    """ρ of one period, see `Groups`.

    W_1 = U Uᵀ with one orthonormal column per group, so the norm of the product is that of W_B ⋯ W_2 (U − J U): as many
    columns as the first iteration has groups, and all singular values from LAPACK, not from an iteration that might
    stop early.
    """
    first = iterations[0]
    columns = np.zeros((ranks, len(first)))
    for index, group in enumerate(first):
        columns[list(group), index] = len(group) ** -0.5
    columns -= columns.mean(axis=0)
    for groups in iterations[1:]:
        columns = averaged(columns, groups)
    return min(1.0, float(np.linalg.norm(columns, 2)))


def left(rho: float, seconds: float, after: float) -> float:
    """The share of disagreement that is left after a time, for a pattern whose periods take `seconds`."""
    return float(max(rho, AGREED) ** (after / seconds)) if seconds else 0.0


def steady_spread(iterations: Sequence[Sequence[Sequence[int]]], ranks: int) -> NDArray[np.float64]:
    """`Groups.spread`, for a pattern that is connected.

    With C the covariance after a period and A the product of its W_t, C = A C Aᵀ + N, where N is what one period adds;
    doubling the number of periods adds up the series.
    """
    step = np.eye(ranks) - 1 / ranks
    product, added = step, np.zeros((ranks, ranks))
    for groups in iterations:
        product = averaged(product, groups)
        added = averaged(averaged(added + step, groups).T, groups)
    while np.abs(product).max() > DONE:
        added = added + product @ added @ product.T
        product = product @ product
    seen = []
    for groups in iterations:
        added = averaged(averaged(added + step, groups).T, groups)
        seen.append(np.diag(added))
    return np.asarray(np.sqrt(np.mean(seen, axis=0)), np.float64)


def averaged(values: NDArray[np.float64], groups: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """W times the values, [ranks, any]: every rank's row replaced by the mean of its group's rows."""
    order = np.concatenate([np.asarray(group) for group in groups])
    sizes = np.array([len(group) for group in groups])
    means = np.add.reduceat(values[order], np.cumsum(sizes) - sizes) / sizes[:, None]
    found = np.empty_like(values)
    found[order] = np.repeat(means, sizes, axis=0)
    return found


def components(iterations: Iterable[Iterable[Sequence[int]]], ranks: int) -> list[int]:
    """A number per rank, equal for those that exchange information, directly or through others, within one period."""
    parent = list(range(ranks))

    def root(rank: int) -> int:
        while parent[rank] != rank:
            parent[rank] = rank = parent[parent[rank]]
        return rank

    for groups in iterations:
        for group in groups:
            for rank in group[1:]:
                parent[root(rank)] = root(group[0])
    return [root(rank) for rank in range(ranks)]
