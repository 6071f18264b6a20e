"""Compares a plan's groups with the best of all patterns, on networks small enough to try every pattern.

    python benchmarks/groups.py

Tries every pattern of up to six iterations, none longer than the least time of the slowest group (`GroupCosts.least`).
Patterns with equal products are tried once. Patterns are compared by the disagreement that is left after that time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jaxcomm.plan.consensus import AGREED
from jaxcomm.plan.groups import GroupCosts, RackRanks
from jaxcomm.planner import groups
from jaxcomm.report.tables import table

PERIODS = 6
NBYTES, ALPHA, BETA = 2**26, 1e-5, 4e-10
SIZES = ([2, 1], [1, 1, 1], [3, 1], [2, 2], [2, 1, 1], [1, 1, 1, 1])  # ranks of each rack
KINDS = (  # the first rack's uplink, the others', and rank 0's NIC
    *((2.0, 2.0, 1.0), (4.0, 2.0, 1.0), (2.0, 4.0, 1.0), (1.0, 1.0, 3.0)),
    *((2.0, 2.0, 3.0), (4.0, 2.0, 3.0), (4.0, 4.0, 2.0)),
)
ALONE = (([3], KINDS[3]), ([4], KINDS[3]), ([4], (1.0, 1.0, 1.5)))


class Compared(NamedTuple):
    """A network, and the disagreement that the plan's groups and the best pattern leave after `GroupCosts.least`."""

    racks: tuple[int, ...]
    uplinks: tuple[float, ...]
    nics: tuple[float, ...]
    ours: float
    best: float
    period: int


def networks() -> Iterator[GroupCosts]:
    """45 networks of three and four ranks."""
    for sizes, (first, others, nic) in (*itertools.product(SIZES, KINDS), *ALONE):
        ends = itertools.pairwise(itertools.accumulate(sizes, initial=0))
        uplinks = [first, *[others] * (len(sizes) - 1)]
        racks = [RackRanks(ranks=tuple(range(*each)), uplink=up) for each, up in zip(ends, uplinks, strict=True)]
        yield GroupCosts(racks, (nic, *[1.0] * (sum(sizes) - 1)), NBYTES, ALPHA, BETA)


def divisions(ranks: Sequence[int]) -> Iterator[list[list[int]]]:
    """Every partition of the ranks."""
    if not ranks:
        yield []
        return
    *others, last = ranks
    for each in divisions(others):
        yield [*each, [last]]
        for i in range(len(each)):
            yield [*each[:i], [*each[i], last], *each[i + 1 :]]


def best(links: GroupCosts, periods: int = PERIODS) -> float:
    """The least disagreement that any pattern leaves."""
    ranks = len(links.nics)
    matrices, seconds = [], []
    for division in divisions(range(ranks)):
        crossed = [rack for group in division for rack in links.crossed(group)]
        if len(crossed) == len({*crossed}) and 0 < links.seconds(division) <= links.least * (1 + 1e-12):
            matrix = np.zeros((ranks, ranks))
            for group in division:
                matrix[np.ix_(group, group)] = 1 / len(group)
            matrices.append(matrix)
            seconds.append(links.seconds(division))
    products, taken = np.eye(ranks)[None] - 1 / ranks, np.zeros(1)
    least = 1.0
    for _ in range(periods):
        products = (np.array(matrices)[None] @ products[:, None]).reshape(-1, ranks, ranks)
        taken = (taken[:, None] + np.array(seconds)).ravel()
        order = np.argsort(taken, kind="stable")
        products, taken = products[order], taken[order]
        keys = np.ascontiguousarray(np.rint(products.reshape(len(products), -1) * 1e9).astype(np.int64))
        _, first = np.unique(keys.view(f"V{keys.shape[1] * 8}").ravel(), return_index=True)  # keeps the fastest of each
        products, taken = products[first], taken[first]
        for some, times in zip(_parts(products), _parts(taken), strict=True):
            rho = np.maximum(np.linalg.norm(some, 2, axis=(1, 2)), AGREED)
            least = min(least, float((rho ** (links.least / times)).min()))
    return least


def _parts(values: np.ndarray) -> list[np.ndarray]:
    return np.array_split(values, max(1, len(values) // 2**16))


def compared(links: GroupCosts, periods: int = PERIODS) -> Compared:
    """The plan's groups beside the best pattern."""
    found = groups.on(links)
    sizes, uplinks = zip(*((len(rack.ranks), rack.uplink) for rack in links.racks), strict=True)
    return Compared(sizes, uplinks, tuple(links.nics), found.left, best(links, periods), found.period)


def main() -> None:
    """Measures and prints."""
    rows = [compared(links) for links in networks()]
    header = ["racks", "uplinks", "NICs", "left by the plan", "by the best of up to 6", "period"]
    cells = [[" ".join(f"{value:g}" for value in field) for field in row[:3]] for row in rows]
    print(
        table(
            header, [[*cell, f"{r.ours:.4f}", f"{r.best:.4f}", r.period] for cell, r in zip(cells, rows, strict=True)]
        )
    )
    behind = [row.ours / row.best for row in rows]
    good = sum(each <= 1 + 1e-6 for each in behind)
    print(f"\n{len(rows)} networks: {good} as good or better, the worst {max(behind):.4f} times the best")


if __name__ == "__main__":
    main()
