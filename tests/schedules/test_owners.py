"""The trees of chunks, whose roots are the owners, for links of unlike rates."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomm import schedules, simulate
from jaxcomm.schedules.owners import Tree, TreeFinder
from jaxcomm.schedules.ports import HostLinks
from jaxcomm.simulate import Network

RATES = st.lists(st.floats(1.0, 10.0), min_size=2, max_size=8)


def least(slowness: list[float]) -> float:
    """The least time of an all-reduce; a buffer takes 1 s through a link of slowness 1."""
    nodes = len(slowness)
    return max(*slowness, 2 * (nodes - 1) / sum(1 / each for each in slowness))


def links(hosts: tuple[int, ...], nics: list[float], racks: tuple[int, ...] = (), **fields: object) -> HostLinks:
    homes = racks or (0,) * (max(hosts) + 1)
    made = HostLinks(hosts, homes, True, 1.0, tuple(nics), (1.0,) * (max(homes) + 1))
    return made._replace(**fields)


def trees(given_: HostLinks, chunks: int, late: frozenset[int] = frozenset()) -> tuple[list[Tree], float]:
    """The trees of `chunks` chunks, and the time of the busiest link for a buffer of these chunks."""
    made = TreeFinder(given_, late)
    return [made.next(bool(late)) for _ in range(chunks)], made.load / chunks


def moves_between(tree: Tree, parts: tuple[int, ...]) -> int:
    """The number of the tree's edges between different hosts or racks; `parts` has each rank's host or rack."""
    return sum(parts[child] != parts[parent] for child, parent in tree.edges)


@settings(deadline=None, max_examples=30)
@given(slowness=RATES)
def test_all_links_are_done_at_the_bound(slowness: list[float]) -> None:
    _, load = trees(links(tuple(range(len(slowness))), slowness), 32 * len(slowness))
    assert least(slowness) * (1 - 1e-9) <= load <= 1.06 * least(slowness)


def test_like_links_take_turns() -> None:
    found, load = trees(links((0, 1, 2, 3, 4), [1.0] * 5), 10)
    assert Counter(tree.top for tree in found) == dict.fromkeys(range(5), 2)
    assert load == pytest.approx(1.6)


def test_a_slow_rank_owns_nothing() -> None:
    found, load = trees(links((0, 1, 2, 3), [1.0, 1.0, 1.0, 4.0]), 60)
    assert 3 not in {tree.top for tree in found}
    assert load == pytest.approx(4.0)


def test_a_fast_nic_of_a_host_sends_most_of_its_sums() -> None:
    found, load = trees(links((0, 0, 1, 1), [8.0, 2.0, 2.0, 2.0]), 64)
    ends = Counter(rank for tree in found for edge in tree.edges if {*edge} & {2, 3} for rank in edge)
    assert ends[0] < 0.3 * ends[1]
    assert load <= 1.75, "by its rates host 0 needs 1.6"


def test_a_rack_behind_a_slow_uplink_sends_one_sum_and_one_behind_a_fast_uplink_all_parts() -> None:
    racks, nics = (0, 1, 1), [1.0, 1.0, 1.0]
    slow, load = trees(links((0, 1, 2), nics, racks, uplinks=(4.0, 4.0)), 30)
    assert {moves_between(tree, racks) for tree in slow} == {1}
    assert load == pytest.approx(4.0)
    fast, load = trees(links((0, 1, 2), [1.0, 4.0, 3.5], racks), 60)
    apart = sum(moves_between(tree, racks) == 2 for tree in fast)
    assert apart > 30, "a root in rack 1 would carry three times its own part"
    assert load <= 1.05 * least([1.0, 4.0, 3.5])


def test_parts_cross_first_where_the_links_within_hosts_are_the_slow_ones() -> None:
    hosts = (0, 0, 0, 1, 1, 1)
    found, load = trees(links(hosts, [1.959, 1.0, 1.25, 10.0, 1.25, 4.0]), 96)
    assert max(moves_between(tree, hosts) for tree in found) > 1
    assert load <= 1.05 * 1.205, "the cheapest trees cost that at the prices of a linear program"


def test_late_hosts_own_nothing_that_the_others_sum_before() -> None:
    found, load = trees(links((0, 1, 2, 3), [1.0, 1.0, 1.0, 2.0]), 70, frozenset({1}))
    assert {tree.top for tree in found} == {0, 2, 3}
    assert load == pytest.approx(2.0), "what the slow rank must receive once all have come"


# The number of ranks, and the slowness of the one slow rank. Times of many chunks are compared with the bound.
@pytest.mark.parametrize(("ranks", "slow"), [(4, 2.0), (4, 4.0), (4, 1.25), (8, 2.0), (8, 1.25), (12, 4.0)])
def test_a_slow_rank_costs_its_own_bytes_and_little_more(ranks: int, slow: float) -> None:
    nics = (1.0,) * (ranks - 1) + (slow,)
    network = Network(0.0, 1.0, nics=nics)

    def seconds(schedule: schedules.Schedule) -> float:
        return float(simulate.run(schedule, 1, network).finish_s.max())

    shared_out = schedules.hierarchical(HostLinks.of(range(ranks), "rank", 1.0, nics=nics), 16 * ranks)
    assert seconds(shared_out) <= 1.1 * least([*nics])
    alike = seconds(schedules.hierarchical(HostLinks.of(range(ranks), "rank", 1.0), 16 * ranks))
    assert seconds(schedules.direct(ranks)) >= 0.99 * alike >= seconds(shared_out)


@pytest.mark.parametrize("given_", [[1.0], [1.0, 0.0, 1.0], [1.0, -2.0, 1.0]])
def test_rates_that_are_missing_or_not_positive_are_refused(given_: list[float]) -> None:
    with pytest.raises(ValueError, match=r"nics is .*; it must be empty or 3 positive numbers"):
        schedules.hierarchical(HostLinks.of(range(3), "rank", 1.0, nics=given_), 6)
