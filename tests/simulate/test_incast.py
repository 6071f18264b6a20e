"""Schedules that incast slows down."""

from __future__ import annotations

import pytest

from jaxcomm import schedules
from jaxcomm.profile.cluster import Cluster, Topology
from jaxcomm.schedules import Schedule
from jaxcomm.simulate import link_of, phases

ALPHA, BETA, FACTOR, LARGE = 1e-4, 1e-8, 1.25, 2**21
ALONE = {
    "ring": (schedules.ring(8), 1.0),
    "halving_doubling": (schedules.halving_doubling(8), FACTOR),
    "straggler": (schedules.straggler(8, 3, 7), FACTOR),
    "direct": (schedules.direct(8), FACTOR),
    "direct_join": (schedules.direct_join(8, 3, 7), FACTOR),
    "half of a ring": (schedules.half("all_gather", schedules.ring(8)), 1.0),
    "half of direct": (schedules.half("reduce_scatter", schedules.direct(8)), FACTOR),
}


@pytest.mark.parametrize("name", ALONE)
def test_those_slow_down_in_which_a_rank_exchanges_with_several(name: str) -> None:
    schedule, factor = ALONE[name]
    assert link_of(schedule, LARGE, Cluster(ALPHA, BETA, incast=FACTOR)) == (ALPHA, factor * BETA, None)
    assert link_of(schedule, LARGE, Cluster(ALPHA, BETA)) == (ALPHA, BETA, None)
    assert link_of(schedule, LARGE - 1, Cluster(ALPHA, BETA, incast=FACTOR)) == (ALPHA, BETA, None)


@pytest.mark.parametrize(
    ("hosts", "schedule", "factor"),
    [
        ((0, 0, 1, 1, 2, 2), schedules.ring(6), 1.0),
        ((0, 0, 1, 1, 2, 2), schedules.direct(6), FACTOR),
        ((0, 0, 0, 1, 1, 1), schedules.direct(6), 1.0),  # every rank sends to one other host only
        ((0, 1, 2, 3), schedules.halving_doubling(4), FACTOR),
        ((0, 0, 1, 1), schedules.halving_doubling(4), 1.0),
    ],
)
def test_of_several_ranks_on_a_host_bytes_between_hosts_take_longer(
    hosts: tuple[int, ...], schedule: Schedule, factor: float
) -> None:
    topology = Topology(hosts=hosts, nic="rank", slow=4.0)
    alpha, beta, met = link_of(schedule, LARGE, Cluster(ALPHA, BETA, topology, incast=FACTOR))
    assert (alpha, beta) == (ALPHA, BETA)
    assert met == topology.model_copy(update={"slow": 4.0 * factor})


def test_a_direct_sum_takes_its_bytes_longer_and_its_rounds_not() -> None:
    direct, nbytes = schedules.direct(4), 2**20
    usual, slowed = (
        phases(direct, nbytes, *link_of(direct, nbytes, Cluster(ALPHA, BETA, incast=each)))[1] for each in (1.0, FACTOR)
    )
    assert slowed - 2 * ALPHA == pytest.approx(FACTOR * (usual - 2 * ALPHA))
