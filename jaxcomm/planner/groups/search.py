"""Finds patterns that leave the least disagreement per second, by descent over the divisions of every iteration.

In turn, each iteration takes the division with which the whole period leaves the least disagreement, until no change
improves the pattern. With up to `EVERY` ranks all divisions are tried, or a sample of `MOST` divisions if there are
more. With more ranks only divisions of the starting patterns are tried.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from jaxcomm.plan.consensus import AGREED
from jaxcomm.plan.groups import GroupCosts
from jaxcomm.planner.groups.divisions import SLACK, Division

EVERY: Final = 8  # every division is tried for up to this many ranks
MOST: Final = 1024  # maximum number of divisions that are tried beside those of the starting patterns
PERIODS: Final = range(1, 9)
RANDOM: Final = 2  # random starts per period
KEPT: Final = 3  # number of best patterns whose spectral norm is reduced at the end

Floats = NDArray[np.float64]
Norm = Callable[[Floats], Floats]


def descended(links: GroupCosts, starts: Sequence[list[Division]], seed: int) -> list[list[Division]]:
    """Patterns that no change of a single iteration improves.

    Args:
      links: the network.
      starts: patterns to start from; each is cut or repeated to every period in `PERIODS`.
      seed: seed of the random starts.
    """
    dice = random.Random(seed)
    pool = _Pool.of(links, starts, dice)
    index = {_key(division): i for i, division in enumerate(pool.divisions)}
    known = [[index[key] for division in start if (key := _key(division)) in index] for start in starts]
    found: dict[tuple[int, ...], None] = {}
    for period in PERIODS:
        cut = [[start[t % len(start)] for t in range(period)] for start in known]
        drawn = [[dice.randrange(len(pool.divisions)) for _ in range(period)] for _ in range(RANDOM)]
        for start in [*cut, *drawn]:
            found[tuple(pool.descend(start, _frobenius))] = None
    best = sorted(found, key=lambda pattern: round(pool.left(pattern, _spectral), 9))[:KEPT]
    return [[pool.divisions[i] for i in pool.descend(list(pattern), _spectral)] for pattern in best]


class _Pool(NamedTuple):
    """Divisions, with the averaging matrix and the seconds of each."""

    divisions: list[Division]
    matrices: Floats
    seconds: Floats

    @classmethod
    def of(cls, links: GroupCosts, starts: Sequence[list[Division]], dice: random.Random) -> Self:
        """The divisions of `starts`. For few ranks, also the divisions of least cost in which groups share no uplink.

        If there are more than `MOST` divisions of least cost, a random sample of `MOST` is used.
        """
        ranks = len(links.nics)
        limit = links.least * SLACK
        every = [*_divisions(list(range(ranks)), links)] if ranks <= EVERY else []
        every = [division for division in every if links.seconds(division) <= limit]
        every = dice.sample(every, MOST) if len(every) > MOST else every
        known = {_key(division): division for division in itertools.chain(*starts, every)}
        divisions = [division for division in known.values() if len(division) < ranks]
        matrices = np.zeros((len(divisions), ranks, ranks))
        for matrix, division in zip(matrices, divisions, strict=True):
            for group in division:
                matrix[np.ix_(group, group)] = 1 / len(group)
        return cls(divisions, matrices, np.array([links.seconds(division) for division in divisions]))

    def descend(self, pattern: list[int], norm: Norm) -> list[int]:
        """The pattern after changing one iteration at a time, as long as a change improves the pattern."""
        ranks = self.matrices.shape[1]
        centred = np.eye(ranks) - 1 / ranks
        least, before = self.left(pattern, norm), np.inf
        while least < before - 1e-9:
            before = least
            for t in range(len(pattern)):
                first, last = centred, np.eye(ranks)
                for i in pattern[:t]:
                    first = self.matrices[i] @ first
                for i in pattern[t + 1 :]:
                    last = self.matrices[i] @ last
                rest = sum(self.seconds[i] for i in pattern) - self.seconds[pattern[t]]
                scores = np.log(np.maximum(norm(last @ self.matrices @ first), AGREED)) / (rest + self.seconds)
                best = int(scores.argmin())
                if scores[best] < scores[pattern[t]] * (1 + 1e-9):
                    pattern = [*pattern[:t], best, *pattern[t + 1 :]]
            least = self.left(pattern, norm)
        return pattern

    def left(self, pattern: Sequence[int], norm: Norm) -> float:
        """The logarithm of the disagreement that a period leaves, divided by the period's time; below 0.

        The unit of the period's time is the time of the fastest division.
        """
        ranks = self.matrices.shape[1]
        product = np.eye(ranks) - 1 / ranks
        for i in pattern:
            product = self.matrices[i] @ product
        least = float(np.log(np.maximum(norm(product[None]), AGREED))[0])
        return least * float(self.seconds.min()) / float(sum(self.seconds[i] for i in pattern))


def _frobenius(products: Floats) -> Floats:
    """The scaled Frobenius norm. It is faster to compute than the spectral norm, and 0 for the same products."""
    return np.asarray(np.sqrt(np.square(products).sum(axis=(1, 2)) / products.shape[1]), np.float64)


def _spectral(products: Floats) -> Floats:
    return np.asarray(np.linalg.norm(products, 2, axis=(1, 2)), np.float64)


def _key(division: Division) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted(tuple(sorted(group)) for group in division))


def _divisions(ranks: list[int], links: GroupCosts) -> Iterator[Division]:
    """Every division in which no uplink carries two groups."""
    if not ranks:
        yield []
        return
    *others, last = ranks
    for division in _divisions(others, links):
        for i in range(len(division) + 1):
            joined = [*division[:i], [*(division[i] if i < len(division) else []), last], *division[i + 1 :]]
            crossed = [rack for group in joined for rack in links.crossed(group)]
            if len(crossed) == len({*crossed}):
                yield sorted(joined)
