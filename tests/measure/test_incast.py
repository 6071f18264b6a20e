"""The cost of exchanging with all hosts at once, from synthetic times of sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from jaxcomm.measure import incast
from jaxcomm.measure.placement import PairRound, PairTimes

ALPHA, BETA = 1e-4, 1.6e-8
SIZES = (1024, 2**20)


def exchanges(hosts: Sequence[str]) -> PairTimes:
    rows = np.array([[ALPHA + size * BETA for size in SIZES]])
    pairs = [(a, b) for b in range(len(hosts)) for a in range(b)]
    return PairTimes(SIZES, tuple(hosts), (), tuple(PairRound((pair,), rows) for pair in pairs))


class Sums:
    """Synthetic sums. A byte of the direct schedule takes `factor` times as long; every `odd`-th sum takes 3 times."""

    def __init__(self, factor: float, odd: int = 0) -> None:
        self.factor, self.odd = factor, odd
        self.calls: list[tuple[list[int], int]] = []

    def __call__(self, ranks: Sequence[int], nbytes: int, schedules: Sequence[str]) -> np.ndarray:
        self.calls.append(([*ranks], nbytes))
        n, moved = len(ranks), 2 * (len(ranks) - 1) / len(ranks) * nbytes * BETA
        rounds = {"direct": 2, "ring": 2 * (n - 1)}
        times = [rounds[each] * ALPHA + moved * (self.factor if each == "direct" else 1.0) for each in schedules]
        longer = [3.0 if self.odd and index % self.odd == 2 else 1.0 for index in range(len(times))]
        return np.array(times) * longer


@pytest.mark.parametrize("factor", [1.0, 1.07, 1.8])
@pytest.mark.parametrize("hosts", [3, 4, 16])
def test_it_is_what_a_byte_takes_longer_and_not_what_rounds_do(factor: float, hosts: int) -> None:
    found = incast.measure(exchanges([str(host) for host in range(hosts)]), Sums(factor, odd=5))
    assert found == pytest.approx(factor, abs=0.02)


def test_one_rank_of_each_host_takes_part_in_sums_that_are_neither_too_small_nor_too_long() -> None:
    sums = Sums(0.9)
    assert incast.measure(exchanges(["a", "a", "b", "c", "b", "c"]), sums) == 1.0  # the result is at least 1
    assert [ranks for ranks, _ in sums.calls] == [[0, 2, 3]]
    assert all(3 * 2**18 <= nbytes <= 3 * 2**22 for _, nbytes in sums.calls)


def test_of_many_hosts_some_take_part() -> None:
    sums = Sums(1.2)
    incast.measure(exchanges([str(host) for host in range(40)]), sums)
    assert sums.calls == [([*range(32)], 32 * 2**18)]


@pytest.mark.parametrize("hosts", [["a"] * 4, ["a", "a", "b", "b"]])
def test_fewer_than_three_hosts_have_none(hosts: list[str]) -> None:
    assert incast.measure(exchanges(hosts), Sums(2.0)) is None
