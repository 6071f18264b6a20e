"""The owners of chunks where links have unlike rates."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcomm import schedules, simulate
from jaxcomm.schedules.owners import balanced, lane_shares, rack_shares, roots, turns
from jaxcomm.simulate import Network

RATES = st.lists(st.floats(1.0, 10.0), min_size=2, max_size=12)


def least(slowness: list[float]) -> float:
    """The time of a buffer that no all-reduce can beat, in times of the buffer through a link of slowness 1."""
    nodes = len(slowness)
    return max(*slowness, 2 * (nodes - 1) / sum(1 / each for each in slowness))


@given(slowness=RATES)
def test_shares_have_all_links_done_at_the_bound(slowness: list[float]) -> None:
    shares = balanced(slowness)
    assert sum(shares) == pytest.approx(1)
    loads = [each * (1 + (len(slowness) - 2) * share) for each, share in zip(slowness, shares, strict=True)]
    assert min(shares) >= 0
    assert max(loads) <= least(slowness) * (1 + 1e-9)


@given(slowness=RATES, count=st.integers(1, 200))
def test_turns_are_never_a_whole_chunk_from_the_shares(slowness: list[float], count: int) -> None:
    shares = balanced(slowness)
    owned = Counter(turns(shares, [None] * count))
    for node, share in enumerate(shares):
        assert abs(owned[node] - share * count) < len(shares) / 2 + 1e-3


def test_nodes_have_their_shares_of_every_kind() -> None:
    found = turns([0.5, 0.25, 0.25], ["a", "b"] * 8)
    assert Counter(found[::2]) == Counter(found[1::2]) == {0: 4, 1: 2, 2: 2}


def test_like_links_take_turns_in_their_order() -> None:
    assert turns(balanced([1.0] * 5), [None] * 10) == [*range(5)] * 2
    assert turns(balanced([3.0, 3.0]), [None] * 4) == [0, 1, 0, 1]


def test_a_lane_is_no_wider_than_its_rank_can_sum() -> None:
    """One fast NIC of four would sum all for its host; its port within carries (m−2) times that."""
    assert lane_shares([1.0, 1.0, 1.0]) == pytest.approx([1 / 3] * 3)
    shares = lane_shares([100.0, 0.1, 100.0, 100.0])
    assert shares[1] > 0.9
    shares = lane_shares([2.0, 0.1, 2.0, 2.0])
    assert 1 + 2 * shares[1] == pytest.approx(max(1 + 2 * shares[1], 2.0 * shares[0]))


def test_a_rack_of_slow_hosts_sums_for_all_less_often() -> None:
    racks = [[0, 1], [2, 3], [4, 5]]
    assert rack_shares(racks, [1.0] * 6, [1.0] * 3) == pytest.approx([1 / 3] * 3)
    slow = rack_shares(racks, [1.0] * 4 + [2.0, 2.0], [1.0] * 3)
    assert slow[2] < slow[0] == pytest.approx(slow[1])
    tops = Counter(each.rack for each in roots(racks, [1.0] * 6, [1.0, 1.0, 3.0], set(), 300))
    assert tops[2] < tops[0]


def test_late_hosts_own_nothing_that_the_others_sum_before() -> None:
    found = roots([[0, 1, 2, 3]], [1.0, 1.0, 1.0, 2.0], [1.0], {1}, 70)
    assert Counter(each.hosts[0] for each in found) == {0: 28, 2: 28, 3: 14}


# One slow rank of n, by how much; the time of many chunks, in times of the bound.
@pytest.mark.parametrize(("ranks", "slow"), [(4, 2.0), (4, 4.0), (4, 1.25), (8, 2.0), (8, 1.25), (12, 4.0)])
def test_a_slow_rank_costs_its_own_bytes_and_little_more(ranks: int, slow: float) -> None:
    nics = (1.0,) * (ranks - 1) + (slow,)
    network = Network(0.0, 1.0, nics=nics)

    def seconds(schedule: schedules.Schedule) -> float:
        return float(simulate.run(schedule, 1, network).finish_s.max())

    shared_out = schedules.hierarchical(range(ranks), "rank", 1.0, 16 * ranks, nics=nics)
    assert seconds(shared_out) <= 1.1 * least([*nics])
    alike = seconds(schedules.hierarchical(range(ranks), "rank", 1.0, 16 * ranks))
    assert seconds(schedules.direct(ranks)) >= 0.99 * alike >= seconds(shared_out)


@pytest.mark.parametrize("given_", [[1.0], [1.0, 0.0, 1.0], [1.0, -2.0, 1.0]])
def test_rates_that_are_missing_or_not_positive_are_refused(given_: list[float]) -> None:
    with pytest.raises(ValueError, match=r"nics is .*; it must be 3 positive numbers, or none"):
        schedules.hierarchical(range(3), "rank", 1.0, 6, nics=given_)
