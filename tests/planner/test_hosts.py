"""Schedules on hosts and racks: their times compared with bounds and each other, and plans that none of them beats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jaxcomm import schedules, simulate
from jaxcomm.plan.specs import links_of
from jaxcomm.planner import plan
from jaxcomm.planner.schedules import Setting
from jaxcomm.planner.schedules.on_hosts import hierarchical_specs
from jaxcomm.profile.cluster import Cluster, Topology
from jaxcomm.report.plan.explanation import explanation
from jaxcomm.schedules import Schedule
from jaxcomm.simulate import Network
from tests.planner.profiles import made
from tests.planner.random_hosts import beside_bound, compared, unlike_cluster, unlike_with_a_late_rank

SHAPES = [(2, 4), (4, 4)]
SLOW = [1.0, 2.0, 4.0, 9.0]
DELAYS = [0.0, 0.25, 0.5, 1.0, 2.0, 4.0]


def on_every_network(test: Callable[..., None]) -> Callable[..., None]:
    """Parametrizes a test by shapes of hosts, by a NIC per rank or per host, and by the slowness of NICs."""
    for names, values in ((("hosts", "per_host"), SHAPES), ("nic", ["rank", "host"]), ("slow", SLOW)):
        test = pytest.mark.parametrize(names, values)(test)
    return test


def one_tier(nodes: int, unit: float, delay: float) -> float:
    """The least time of one tier in which a node sends a buffer in `unit` seconds and one node is late by `delay`."""
    return max(unit, (nodes - 1) / nodes * (2 * unit - delay))


def limit(hosts: int, per_host: int, nic: str, slow: float, delay: float) -> float:
    """The limit for many chunks (see `schedules.hierarchical`). A buffer takes 1 s within a host."""
    unit = slow / per_host if nic == "rank" else slow
    return max(one_tier(per_host, 1.0, delay), one_tier(hosts, unit, delay))


def shares(hosts: int, per_host: int, nic: str, slow: float, delay: float) -> tuple[float, float]:
    """Shares of a buffer that are summed within hosts, and between hosts, before a rank that is late by `delay`."""
    unit = slow / per_host if nic == "rank" else slow
    within = min(1.0, delay * (per_host - 1) / (per_host - 2)) if per_host > 2 else 1.0
    return within, min(1.0, delay * (hosts - 1) / ((hosts - 2) * unit)) if hosts > 2 else 1.0


def took(schedule: Schedule, topology: Topology, delay: float) -> float:
    """Seconds of a run without latency from the late rank's arrival on. A buffer takes 1 s within a host."""
    arrivals = [delay * (rank in schedule.late_ranks) for rank in range(schedule.ranks)]
    run = simulate.run(schedule, 1, Network(0.0, 1.0, topology), arrivals)
    return float(run.finish_s.max()) - max(arrivals)


def test_some_sizes_are_cut_twice_per_rank() -> None:
    topology = Topology(hosts=(0,) * 4 + (1,) * 4, nic="rank", slow=4.0)
    setting = Setting(ranks=8, links=Cluster(1e-5, 1e-10, topology), ports=16, min_gain=0.02)
    counts = [spec.chunks for size in (2**20, 2**24, 2**28) for spec in hierarchical_specs(setting, size)]
    assert counts == [8, 16, 16], "at 16 MiB once per rank takes 9 % longer, and four times as well"


@on_every_network
def test_hierarchical_takes_what_its_slowest_tier_takes(hosts: int, per_host: int, nic: Any, slow: float) -> None:
    ranks = hosts * per_host
    topology = Topology(hosts=tuple(rank // per_host for rank in range(ranks)), nic=nic, slow=slow)
    links, chunks, shape = links_of(topology), 16 * ranks, (hosts, per_host, nic, slow)
    plain = schedules.hierarchical(links, chunks)
    assert took(plain, topology, 0.0) <= 1.1 * limit(*shape, 0.0)
    all_before = schedules.hierarchical(links, chunks, [per_host - 1], chunks, chunks)
    assert took(all_before, topology, 100.0) <= 1.1 * limit(*shape, 100.0)
    assert limit(*shape, 100.0) == max(1.0, slow / per_host if nic == "rank" else slow)


@pytest.mark.parametrize(
    ("hosts", "per_host", "slow", "delay", "most"),
    [
        (2, 4, 4.0, 0.0, 1.0),
        (4, 4, 4.0, 0.0, 1.15),
        (4, 4, 9.0, 0.0, 1.1),
        (2, 8, 4.0, 0.5, 1.15),
        (4, 4, 4.0, 0.5, 1.4),
    ],
)
def test_two_chunks_per_rank_are_near_the_limit(
    hosts: int, per_host: int, slow: float, delay: float, most: float
) -> None:
    ranks = hosts * per_host
    topology = Topology(hosts=tuple(rank // per_host for rank in range(ranks)), nic="rank", slow=slow)
    rule = shares(hosts, per_host, "rank", slow, delay) if delay else (0.0, 0.0)
    late = [per_host - 1] if delay else []
    schedule = schedules.hierarchical(links_of(topology), 2 * ranks, late, *(round(2 * ranks * x) for x in rule))
    assert took(schedule, topology, delay) <= most * limit(hosts, per_host, "rank", slow, delay)


@on_every_network
def test_halves_take_what_their_slowest_tier_takes_whoever_is_late(
    hosts: int, per_host: int, nic: Any, slow: float
) -> None:
    ranks = hosts * per_host
    topology = Topology(hosts=tuple(rank // per_host for rank in range(ranks)), nic=nic, slow=slow)
    first = (per_host - 1) / ranks  # until a host has the first sum for another host
    bound = simulate.half_lower_bound(ranks, 1, 0.0, 1.0, topology=topology)
    port = (ranks - 1) / ranks / (1 + 1 / slow)  # time in which the late rank's ports receive all other chunks
    for half, after in (("reduce_scatter", bound), ("all_gather", port)):
        schedule = schedules.hierarchical_half(half, links_of(topology))
        assert took(schedule, topology, 0.0) <= limit(hosts, per_host, nic, slow, 0.0) / 2 + first + 1e-9
        late = simulate.run(schedule, 1, Network(0.0, 1.0, topology), [100.0] + [0.0] * (ranks - 1))
        assert after <= late.finish_s.max() - 100.0 <= took(schedule, topology, 0.0) + 1e-9


def test_a_plan_has_halves_where_direct_is_not_the_best_for_all() -> None:
    assert plan(made(8, None)).halves is None
    profile = made(8, None).model_copy(update={"topology": Topology(hosts=(0,) * 4 + (1,) * 4, nic="rank", slow=4.0)})
    planned = plan(profile)
    found = planned.halves
    assert found
    assert "A late rank gains nothing here" in explanation(planned)
    assert [entry.schedule.kind for entry in (found[0], found[-1])] == ["direct", "hierarchical"]
    for entry in found:
        assert entry.lower_bound <= entry.seconds == min(offer.seconds for offer in entry.alternatives)
    large = {offer.schedule.kind: offer.seconds for offer in found[-1].alternatives}
    assert large["direct"] > 3.5 * large["hierarchical"]


@pytest.mark.slow
@on_every_network
def test_whatever_the_delay_it_is_near_the_limit(hosts: int, per_host: int, nic: Any, slow: float) -> None:
    ranks = hosts * per_host
    topology = Topology(hosts=tuple(rank // per_host for rank in range(ranks)), nic=nic, slow=slow)
    chunks = 16 * ranks
    for delay in DELAYS:
        rule = shares(hosts, per_host, nic, slow, delay)
        shared = [[round(min(1.0, part * share) * chunks) for share in rule] for part in (1.0, 1.25, 0.75)]
        offers: Iterator[Schedule] = (
            schedules.hierarchical(links_of(topology), chunks, late, *before)
            for late, before in [([per_host - 1], each) for each in shared] + [([], [])]
        )
        near = NEAR.get((hosts, nic, slow), 1.15) * limit(hosts, per_host, nic, slow, delay)
        assert any(took(offer, topology, delay) <= near for offer in offers), delay


# Factors on the limit where early chunks and other chunks share NICs: there a run is further from the limit.
NEAR = {(2, "host", 1.0): 1.2, (4, "host", 1.0): 1.35, (4, "rank", 4.0): 1.2, (4, "host", 9.0): 1.2}


@pytest.mark.parametrize(
    ("late", "across"),
    [([2, 3], 1), ([0, 1, 2, 3], 1), ([3, 7], 2)],
    ids=["two on a host", "a host", "one on each of two hosts"],
)
def test_several_late_ranks(late: list[int], across: int) -> None:
    """After a long delay, q late ranks of m on a host move (m - 1 + q)/m buffers, q late hosts of h (h - 1 + q)/h."""
    hosts, per_host, slow = 2, 4, 4.0
    topology = Topology(hosts=tuple(rank // per_host for rank in range(8)), nic="rank", slow=slow)
    schedule = schedules.hierarchical(links_of(topology), 128, late, 128, 128)
    counts = [sum(topology.hosts[rank] == host for rank in late) for host in range(hosts)]
    within = max(min(per_host - 1 + count, 2 * (per_host - 1)) / per_host for count in counts if count)
    limit_ = max(within, min((hosts - 1 + across) / hosts, 2 * (hosts - 1) / hosts) * slow / per_host)
    assert took(schedule, topology, 100.0) <= 1.2 * limit_


def test_racks_are_a_third_tier() -> None:
    """Two racks of two hosts, with two ranks each. A slow uplink carries the buffer once in each direction."""
    topology = Topology(hosts=(0, 0, 1, 1, 2, 2, 3, 3), nic="rank", slow=1.0, racks=(0, 0, 1, 1), uplinks=(4.0, 4.0))
    ways = [schedules.HostLinks.of(topology.hosts, "rank", 1.0, racks) for racks in (topology.racks, ())]
    with_racks, without = (took(schedules.hierarchical(links, 64), topology, 0.0) for links in ways)
    assert with_racks <= 1.2 * 4.0
    assert with_racks < 0.8 * without


# Quick cases of the 300 in benchmarks/hosts.py: no late rank, a NIC per rank and per host, racks, and plain schedules
# that gain because all ranks but the late ones have begun.
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 4, 8, 99, 108, 163, 233, 261, 284])
def test_no_plan_is_slower_than_what_else_there_is(seed: int) -> None:
    for comparison in compared(seed):
        assert comparison.passes, comparison


# Quick cases of the 300 with unlike NICs: hosts of one rank and of several ranks, racks, and a late rank.
@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 6, 9, 21, 33, 81, 291])
def test_no_plan_for_unlike_nics_is_slower_than_what_else_there_is(seed: int) -> None:
    for comparison in compared(seed, unlike_cluster):
        assert comparison.passes, comparison


# Hosts of one rank, hosts of several ranks, a NIC per host, racks behind slow uplinks, and racks whose hosts each send
# to other racks. Seeds 15, 52 and 119: hosts of three ranks with NICs as fast as the links within a host. Seeds 30 and
# 269: few ranks with nearly like rates.
@pytest.mark.parametrize("seed", [50, 56, 89, 123, 163, 173, 196, 272, 291, 15, 20, 30, 52, 109, 119, 229, 269])
def test_unlike_links_take_what_no_all_reduce_can_beat_and_little_more(seed: int) -> None:
    network = unlike_cluster(seed).network
    assert network
    assert 1.0 <= beside_bound(network) <= 1.15


# Delays shorter and longer than the others' work; rates that differ by at most 1.5, and by up to 4.
@pytest.mark.parametrize("seed", [15, 16, 36, 39])
def test_a_rank_late_among_unlike_ones_costs_what_nothing_can_beat_and_little_more(seed: int) -> None:
    assert 1.0 - 1e-6 <= unlike_with_a_late_rank(seed).beside_bound() <= 1.15


def test_times_that_jump_where_messages_overtake_are_those_of_runs() -> None:
    """Halfway between two sizes the time lies between their times, but at the quarters it does not."""
    topology = Topology(hosts=(0, 0, 0, 1, 1, 1, 2, 2), nic="host", slow=2.0, racks=(0, 0, 1), uplinks=(4.0, 2.0))
    schedule, link = schedules.direct_join(8, 7, 7), (4.53e-6, 7.72e-11)
    row = [0.0] * 7 + [1.0]
    for nbytes in (2**12, 2**14, 2**15, 2**16, 2**17, 2**20):
        ran = float(simulate.run(schedule, nbytes, Network(*link, topology), row).finish_s.max()) - 1.0
        assert simulate.mean_seconds(schedule, nbytes, *link, topology, (7,), [row]) == pytest.approx(ran, rel=0.02)
