"""Compares a plan's split over rails with the best split and with the best single rail, at every size.

    python benchmarks/rails.py

The rails are made up: all 36 pairs of nine kinds, and some sets of three and four, with exact tables and with noise of
10 %. The best split is found without jaxcomm's search: the least time in which the rails together carry the size, with
shares of any fineness; for pairs also by trying every multiple of 1/4096.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.plan.rails import Rails
from jaxcomm.planner import rails
from jaxcomm.profile import Link, Profile, Provenance, Rail, Sample
from jaxcomm.profile.fit import Curve, without_noise
from jaxcomm.report.tables import table

KINDS = [  # seconds of the smallest call, bytes per second
    (5e-6, 1e9),
    (1e-5, 1e9),
    (3e-5, 1e9),
    (1e-3, 1e10),
    (1e-4, 4e9),
    (5e-6, 4e9),
    (2e-4, 3e8),
    (1e-6, 2.5e10),
    (5e-5, 1e10),
]
SIZES = np.geomspace(2**8, 2**33, 2231).round().astype(np.int64)
GRID = 4096
RANDOM = 40  # sets of rails
NOISE = 0.1

Floats = NDArray[np.float64]


class Behind(NamedTuple):
    """The greatest ratio, over all sizes, of a plan's time to the best split's, and to the best single rail's."""

    split: float
    alone: float
    ranges: int


def profile(kinds: Sequence[tuple[float, float]], rng: np.random.Generator | None = None) -> Profile:
    """Rails of these kinds, measured at every power of two; with a generator the measurements are noisy."""
    members = []
    for number, (start, rate) in enumerate(kinds):
        sizes = [2**power for power in range(35)]
        noise = np.exp(NOISE * rng.standard_normal(len(sizes))) if rng else np.ones(len(sizes))
        latency = [
            Sample(bytes=size, seconds=(start + size / rate) * each) for size, each in zip(sizes, noise, strict=True)
        ]
        members.append(Rail(name=f"eth{number}", transport="tcp", latency=latency, slowdown=1 + 0.05 * (number % 2)))
    return Profile(
        ranks=4,
        link=Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="made up"),
        rails=members,
        provenance=Provenance(source="made up", tool="benchmarks/rails.py"),
    )


def behind(given: Profile, sizes: NDArray[np.int64] = SIZES, grid: int | None = None) -> Behind:
    """Compares the plan's splits with the best; with a grid, also with every multiple of 1/grid of a pair."""
    found = rails.decide(given)
    assert found
    curves = [
        Curve.of([each.bytes for each in rail.latency], without_noise([each.seconds for each in rail.latency]).tolist())
        for rail in given.rails
    ]
    slow = [rail.slowdown for rail in given.rails]
    alone = np.min([curve(sizes) for curve in curves], axis=0)
    best = _by_time(curves, slow, sizes, alone)
    if grid:
        best = np.minimum(best, _by_grid(curves, slow, sizes, grid))
    taken = _taken(found, given, curves, sizes)
    return Behind(float((taken / best).max()), float((taken / alone).max()), len(found.ranges))


def _taken(found: Rails, given: Profile, curves: Sequence[Curve], sizes: NDArray[np.int64]) -> Floats:
    """Seconds by the plan's shares."""
    index = {rail.name: number for number, rail in enumerate(given.rails)}
    taken = np.empty(len(sizes))
    at = np.searchsorted([each.min_bytes for each in found.ranges], sizes, side="right") - 1
    for number in np.unique(at):
        here, shares = at == number, found.ranges[number].shares
        factors = [given.rails[index[each.rail]].slowdown if len(shares) > 1 else 1.0 for each in shares]
        taken[here] = np.max(
            [
                factor * curves[index[each.rail]](each.share * sizes[here])
                for factor, each in zip(factors, shares, strict=True)
            ],
            axis=0,
        )
    return taken


def _by_time(curves: Sequence[Curve], slow: Sequence[float], sizes: NDArray[np.int64], alone: Floats) -> Floats:
    """The least seconds in which the rails together carry the sizes, by bisection; at most `alone`."""
    low, high = np.zeros(len(sizes)), alone.copy()
    for _ in range(50):
        middle = (low + high) / 2
        carried = sum(curve.bytes(middle / factor) for curve, factor in zip(curves, slow, strict=True))
        low, high = np.where(carried >= sizes, low, middle), np.where(carried >= sizes, middle, high)
    return high


def _by_grid(curves: Sequence[Curve], slow: Sequence[float], sizes: NDArray[np.int64], grid: int) -> Floats:
    """The least seconds of a pair over all multiples of 1/grid."""
    best = np.full(len(sizes), np.inf)
    (one, other), (slow_one, slow_other) = curves, slow
    for share in np.arange(1, grid) / grid:
        best = np.minimum(best, np.maximum(slow_one * one(share * sizes), slow_other * other((1 - share) * sizes)))
    return best


def at_random(number: int) -> Behind:
    """Compares for three or four rails of random latencies and rates. Two of every four sets have noise."""
    rng = np.random.default_rng(1000 + number)
    kinds = [(float(10 ** rng.uniform(-6, -3)), float(10 ** rng.uniform(8.5, 10.4))) for _ in range(3 + number % 2)]
    return behind(profile(kinds, rng if number % 4 > 1 else None))


def main() -> None:
    """Measures and prints."""
    rng = np.random.default_rng(0)
    rows: list[list[Any]] = []
    pairs = list(itertools.combinations(KINDS, 2))
    some = [[KINDS[i] for i in rng.permutation(len(KINDS))[:count]] for count in (3, 4) for _ in range(12)]
    for name, cases in (("36 pairs", pairs), ("12 of three rails", some[:12]), ("12 of four rails", some[12:])):
        for noise in (None, rng):
            grid = GRID if name == "36 pairs" else None
            found = [behind(profile(case, noise), grid=grid) for case in cases]
            worst = [max(each) for each in zip(*found, strict=True)]
            rows.append([name, "10 %" if noise else "none", f"{worst[0]:.4f}", f"{worst[1]:.4f}", worst[2]])
    worst = [max(each) for each in zip(*map(at_random, range(RANDOM)), strict=True)]
    rows.append([f"{RANDOM} of three and four, random", "none, 10 %", f"{worst[0]:.4f}", f"{worst[1]:.4f}", worst[2]])
    print(table(["rails", "noise", "of the best split", "of the best rail", "most ranges"], rows))


if __name__ == "__main__":
    main()
