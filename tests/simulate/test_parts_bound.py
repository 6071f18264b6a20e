"""The least time of an all-reduce on hosts and racks of any rates."""

from __future__ import annotations

from typing import Any

import pytest

from jaxcomm import simulate
from jaxcomm.profile.cluster import Topology
from jaxcomm.simulate import Network
from jaxcomm.simulate.parts_bound import least_time
from tests.planner.random_hosts import rivals, unlike_cluster


def topology(hosts: tuple[int, ...], **fields: Any) -> Topology:
    return Topology(hosts=hosts, **{"nic": "rank", "slow": 1.0, **fields})


@pytest.mark.parametrize(
    ("network", "time"),
    [
        (topology((0, 1, 2, 3)), 2 * 3 / 4),
        (topology((0, 1, 2, 3), nics=(1.0, 1.0, 1.0, 2.0)), 2.0),
        (topology((0, 1, 2), nics=(2.0, 1.93, 2.42)), 4 / (1 / 2 + 1 / 1.93 + 1 / 2.42)),
        (topology((0, 1, 2), racks=(0, 1, 1), uplinks=(4.0, 4.0)), 4.0),
        # Rack 1 as 3 parts: 6 messages at the rates 3 · 1/2 of its hosts and 1/4 of its uplink need less than 4.
        (topology((0, 1, 2, 3), nics=(1.0, 2.0, 2.0, 2.0), racks=(0, 1, 1, 1), uplinks=(4.0, 4.0)), 4.0),
        (topology((0, 1, 2, 3), nics=(1.0, 3.0, 3.0, 3.0), racks=(0, 1, 1, 1), uplinks=(4.0, 4.0)), 6 / (1 + 1 / 4)),
        # Host 0 as 2 parts: each rank sends within the host and through its NIC.
        (topology((0, 0, 1), nics=(2.0, 2.0, 1.0)), 4 / (2 + 1 + 1)),
    ],
)
def test_the_least_time_is_that_of_the_parts_with_most_to_send(network: Topology, time: float) -> None:
    assert least_time(network) == pytest.approx(time)


@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_no_schedule_takes_less(seed: int) -> None:
    network = unlike_cluster(seed).network
    assert network
    for rival in rivals(network, ()):
        run = simulate.run(rival, 1, Network(0.0, 1.0, network))
        assert run.finish_s.max() >= least_time(network) * (1 - 1e-9), rival.kind
