"""Computes how fast ranks come to agree if they average within groups, and how far apart they stay.

The matrix W_t replaces every rank's value by the mean of the rank's group in iteration t. The matrix J replaces every
value by the mean of all ranks. `Groups` defines ρ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

AGREED: Final = 1e-6  # a ρ below this value counts as full agreement, because training does not notice the difference
DONE: Final = 1e-9  # `steady_spread` stops doubling when no entry of its matrix product exceeds this value


def contraction(iterations: Sequence[Sequence[Sequence[int]]], ranks: int) -> float:
    """The ρ of one period, as defined in `Groups`.

    W_1 = U Uᵀ, where U has one orthonormal column per group of the first iteration. W_B ⋯ W_1 − J therefore has the
    same norm as W_B ⋯ W_2 (U − J U), a matrix with fewer columns. LAPACK computes all singular values, because an
    iterative method might stop early.
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
    """The share of the disagreement that is left after `after` seconds, if a period takes `seconds`."""
    return float(max(rho, AGREED) ** (after / seconds)) if seconds else 0.0


def steady_spread(iterations: Sequence[Sequence[Sequence[int]]], ranks: int) -> NDArray[np.float64]:
    """The value of `Groups.spread` for a pattern in which all ranks come to agree.

    Let C be the covariance after a period, A the product of the period's W_t, and N the covariance that one period
    adds. Then C = A C Aᵀ + N. The series for C is summed by doubling the number of periods.
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
    """W times `values`, which has one row per rank: each rank's row is replaced by the mean of its group's rows."""
    order = np.concatenate([np.asarray(group) for group in groups])
    sizes = np.array([len(group) for group in groups])
    means = np.add.reduceat(values[order], np.cumsum(sizes) - sizes) / sizes[:, None]
    found = np.empty_like(values)
    found[order] = np.repeat(means, sizes, axis=0)
    return found


def components(iterations: Iterable[Iterable[Sequence[int]]], ranks: int) -> list[int]:
    """A number per rank, equal for ranks that exchange information within a period, directly or through other ranks."""
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
