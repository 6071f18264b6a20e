"""Runs on networks with shared, slow or lossy links, compared with closed forms and with each other."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomm import schedules, simulate
from jaxcomm.profile import Link, PacketLoss, Profile, Provenance, Rack
from jaxcomm.profile.cluster import Topology
from jaxcomm.schedules import Schedule
from jaxcomm.simulate import Network
from jaxcomm.simulate.packet_loss import repairs

ALPHA, BETA, NBYTES = 3e-6, 1e-10, 3 << 20
ALIKE = Network(ALPHA, BETA)
PAIRS = dataclasses.replace(ALIKE, racks=(0, 0, 1, 1), uplinks=(4.0, 4.0))
LOSS = PacketLoss(rate=0.01, timeout_s=0.01)

FAMILY = [
    schedules.ring(8),
    schedules.halving_doubling(6),
    schedules.direct(7),
    schedules.broadcast(5, 1),
    schedules.straggler(8, 3, 14),
    schedules.hybrid(6, 2, 17, 5),
]
EACH = pytest.mark.parametrize("schedule", FAMILY, ids=lambda schedule: schedule.kind)


def finish(schedule: Schedule, network: Network, arrivals: list[float] | None = None, seed: int = 0) -> float:
    return float(simulate.run(schedule, NBYTES, network, arrivals, seed).finish_s.max())


def ring_in_order(*order: int) -> Schedule:
    """A ring that visits the ranks in this order."""
    table = schedules.ring(len(order)).table().copy()
    table[:, 1:3] = np.array(order)[table[:, 1:3]]
    return Schedule.from_table(table, kind="ring", ranks=len(order), num_chunks=len(order))


@EACH
def test_links_that_are_as_fast_as_ports_and_not_shared_change_nothing(schedule: Schedule) -> None:
    n = schedule.ranks
    everyone = dataclasses.replace(ALIKE, racks=tuple(range(n)), uplinks=(1.0,) * n, nics=(1.0,) * n)
    assert finish(schedule, everyone) == pytest.approx(finish(schedule, ALIKE), rel=1e-12)
    hosts = Topology(hosts=tuple(range(n)), nic="host", slow=1.0)
    assert finish(schedule, dataclasses.replace(ALIKE, topology=hosts)) == pytest.approx(finish(schedule, ALIKE))


def test_a_shared_uplink_of_a_quarter_slows_a_ring_by_four() -> None:
    ring = schedules.ring(4)
    rounds, chunk = ring.num_rounds, NBYTES / 4 * BETA
    # The uplink starts the next chunk while the previous chunk is still in flight, so α counts once.
    assert finish(ring, PAIRS) == pytest.approx(ALPHA + rounds * 4 * chunk)


def test_a_bad_ring_order_over_shared_uplinks_costs_twice_that() -> None:
    ring = ring_in_order(0, 2, 1, 3)
    rounds, chunk = ring.num_rounds, NBYTES / 4 * BETA
    free = dataclasses.replace(PAIRS, alpha=0.0)
    assert finish(ring, free) == pytest.approx(rounds * 8 * chunk, rel=0.1)
    assert finish(ring, free) <= rounds * 8 * chunk * (1 + 1e-9)


def test_a_slow_card_slows_what_passes_it() -> None:
    slow = dataclasses.replace(ALIKE, nics=(1.0, 1.0, 3.0, 1.0))
    ring = schedules.ring(4)
    assert finish(ring, slow) == pytest.approx(ring.num_rounds * (ALPHA + 3 * NBYTES / 4 * BETA))


# Two hosts of four ranks; a byte between hosts takes 4 times as long. The unit of time is a chunk over a fast link.
# ring: each of 14 rounds waits for the links between hosts. straggler: the late rank's exchanges with 4 owners on the
# other host take 4 each, and their sums cross again. direct: in both phases a host's NIC sends 16 messages.
HOSTS = [("rank", schedules.ring(8), 56.0), ("rank", schedules.straggler(8, 3, 7), 27.0)]
HOSTS += [("rank", schedules.straggler(8, 3, 14), 51.0), ("host", schedules.ring(8), 56.0)]
HOSTS += [("host", schedules.direct(8), 128.0)]


@pytest.mark.parametrize(("nic", "schedule", "chunks"), HOSTS)
def test_a_run_on_two_hosts_takes_what_its_slowest_links_take(
    nic: Literal["rank", "host"], schedule: Schedule, chunks: float
) -> None:
    topology = Topology(hosts=(0, 0, 0, 0, 1, 1, 1, 1), nic=nic, slow=4.0)
    arrivals = [float(rank == schedule.late) for rank in range(8)]
    seconds = chunks * NBYTES / schedule.num_chunks * BETA
    assert finish(schedule, Network(0.0, BETA, topology), arrivals) - max(arrivals) == pytest.approx(seconds)


def test_an_uplink_is_never_used_twice_at_once() -> None:
    arrivals = np.random.default_rng(1).exponential(1e-3, 12).tolist()
    network = dataclasses.replace(ALIKE, racks=(0, 1, 2) * 4, uplinks=(4.0, 2.0, 3.0))
    run = simulate.run(schedules.ring(12), NBYTES, network, arrivals)
    messages, uplinks, rack = run.phases[-1], np.array(network.uplinks), np.arange(12) % 3
    for ends in (messages.src, messages.dst):
        for index in range(3):
            mine = rack[ends] == index
            busy = float(mine.sum()) * NBYTES / 12 * BETA * uplinks[index]
            first, last = messages.start_s[mine].min(), messages.free_s[mine].max()
            assert last - first >= busy * (1 - 1e-9)


@EACH
def test_no_loss_is_no_loss(schedule: Schedule) -> None:
    lossless = dataclasses.replace(ALIKE, packet_loss=PacketLoss(rate=0.0))
    assert finish(schedule, lossless) == finish(schedule, ALIKE)
    assert finish(schedule, dataclasses.replace(lossless, bound=0.1)) == finish(schedule, ALIKE)


@EACH
def test_losses_cost_time_and_a_bound_saves_it(schedule: Schedule) -> None:
    reliable = dataclasses.replace(ALIKE, packet_loss=LOSS)
    for seed in range(5):
        took = [finish(schedule, dataclasses.replace(reliable, bound=bound), seed=seed) for bound in (None, 0.0, 0.01)]
        took.append(finish(schedule, dataclasses.replace(reliable, bound=0.5), seed=seed))
        assert took == sorted(took, reverse=True)
        assert took[0] > finish(schedule, ALIKE)
        assert took[-1] == pytest.approx(finish(schedule, ALIKE))
        assert took[0] == finish(schedule, reliable, seed=seed)


def test_tcp_waits_for_its_timeout_when_the_tail_is_lost() -> None:
    """In a message of three packets, every loss is in the tail. In a long message, only the last three packets are."""
    rng = np.random.default_rng(0)
    loss = PacketLoss(rate=0.001, timeout_s=1.0)
    again, waited = repairs(np.full(100_000, 3), loss, None, 1e-3, rng)
    assert ((waited >= 1.0) == (again > 0)).all()
    assert (again > 0).mean() == pytest.approx(1 - 0.999**3, rel=0.2)
    again, waited = repairs(np.full(100_000, 1000), loss, None, 1e-3, rng)
    assert again.mean() == pytest.approx(1000 * 0.001 / 0.999, rel=0.05)
    assert (waited[again > 0] >= 1e-3).all()
    assert (waited >= 1.0).mean() == pytest.approx(1 - 0.999**3 * np.exp(-0.001), rel=0.2)


def test_a_bound_repairs_until_enough_has_come() -> None:
    loss = PacketLoss(rate=0.2)
    again, waited = repairs(np.full(10_000, 100), loss, 0.1, 1e-3, np.random.default_rng(0))
    rounds = np.rint(waited / 1e-3)
    assert set(rounds) <= {0.0, 1.0, 2.0, 3.0} and (again[rounds == 0] == 0).all()
    assert (again[rounds == 1] > 10).all() and (rounds == 1).mean() > 0.9


@EACH
def test_the_critical_path_has_the_length_of_the_run(schedule: Schedule) -> None:
    n = schedule.ranks
    network = dataclasses.replace(ALIKE, racks=tuple(i % 2 for i in range(n)), uplinks=(2.0, 4.0), packet_loss=LOSS)
    for seed in range(5):
        arrivals = np.random.default_rng(seed).exponential(1e-3, n)
        run = simulate.run(schedule, NBYTES, network, arrivals.tolist(), seed)
        parts = simulate.critical_path(run, float(arrivals.min()))
        assert sum(parts) == pytest.approx(run.finish_s.max() - arrivals.min(), rel=1e-9)
        assert min(parts) >= 0 and parts.port_s > 0 and parts.latency_s > 0


@settings(max_examples=30, deadline=None)
@given(
    schedule=st.sampled_from(FAMILY),
    arrivals=st.lists(st.floats(0, 1e-2), min_size=8, max_size=8),
    rank=st.integers(0, 7),
    later=st.floats(0, 1e-2),
    seed=st.integers(0, 100),
)
def test_who_arrives_later_makes_nobody_finish_earlier(
    schedule: Schedule, arrivals: list[float], rank: int, later: float, seed: int
) -> None:
    """Only without shared links: at a shared link, a later message may let another message pass first."""
    n = schedule.ranks
    network = dataclasses.replace(ALIKE, nics=(1.0, 2.0) * (n // 2) + (1.0,) * (n % 2), packet_loss=LOSS)
    before = simulate.run(schedule, NBYTES, network, arrivals[:n], seed).finish_s
    moved = [time + later * (index == rank % n) for index, time in enumerate(arrivals[:n])]
    assert (simulate.run(schedule, NBYTES, network, moved, seed).finish_s >= before - 1e-12).all()


@EACH
def test_a_seed_repeats_a_run(schedule: Schedule) -> None:
    network = dataclasses.replace(ALIKE, packet_loss=LOSS)
    simulation = simulate.Simulation(schedule, NBYTES, network)
    first, other, again = (simulation.run(seed=seed).finish_s.tolist() for seed in (1, 2, 1))
    assert first == again and first != other


def test_a_forecast_is_the_mean_and_the_tail_over_the_steps() -> None:
    ring = schedules.ring(4)
    steps = [[0.0, 0.0, 0.0, 1e-3 * step] for step in range(10)]
    found = simulate.forecast(ring, NBYTES, ALIKE, steps)
    after = [finish(ring, ALIKE, step) - max(step) for step in steps]
    assert found.runs == 10 and found.mean_s == pytest.approx(np.mean(after))
    assert found.max_s == max(after) and found.p99_s == pytest.approx(np.quantile(after, 0.99))
    assert simulate.forecast(ring, NBYTES, ALIKE, steps, repeat=5).mean_s == pytest.approx(np.mean(after[::2]))
    assert simulate.forecast(ring, NBYTES, dataclasses.replace(ALIKE, packet_loss=LOSS), steps, repeat=30).runs == 30


def test_a_profile_becomes_its_network() -> None:
    profile = Profile(
        ranks=4,
        link=Link(alpha_s=ALPHA, beta_s_per_byte=BETA, source="assumed"),
        racks=[Rack(name="b", ranks=[1, 3], uplink=2.0), Rack(name="a", ranks=[2, 0], uplink=4.0)],
        nics=[1.0, 2.0, 1.0, 1.0],
        packet_loss=LOSS,
        provenance=Provenance(source="assumed", tool="test"),
    )
    found = Network.of(profile, bound=0.1)
    assert found == Network(ALPHA, BETA, None, (1, 0, 1, 0), (2.0, 4.0), (1.0, 2.0, 1.0, 1.0), 1.0, LOSS, 0.1)


# Rank 1 takes 2 seconds per chunk, the others 1. A row: (sender, receiver) by round, the starts, and the arrivals.
@pytest.mark.parametrize(
    ("moves", "starts", "ends"),
    [
        ([(0, 1), (0, 2)], [0, 1], [2, 2]),  # rank 0 has sent its chunk after 1 second
        ([(1, 0), (2, 0)], [0, 1], [2, 2]),  # the slow message takes 1 second of rank 0's port
        ([(2, 0), (1, 0)], [0, 0], [1, 2]),  # that second may be the last of the 2 seconds
        ([(0, 1), (2, 1)], [0, 2], [2, 4]),  # a slow port serves one message at a time
        ([(1, 0), (1, 2)], [0, 2], [2, 4]),
        ([(1, 0), (2, 0), (2, 0)], [0, 1, 2], [2, 2, 3]),
    ],
)
def test_a_fast_port_serves_others_beside_a_slow_one(
    moves: list[tuple[int, int]], starts: list[float], ends: list[float]
) -> None:
    table = [(round_, src, dst, round_, schedules.Op.COPY) for round_, (src, dst) in enumerate(moves)]
    schedule = schedules.Schedule.from_table(table, kind="by hand", ranks=3, num_chunks=len(moves))
    [messages] = simulate.run(schedule, len(moves), Network(0.0, 1.0, nics=(1.0, 2.0, 1.0))).phases
    assert (messages.start_s.tolist(), messages.end_s.tolist()) == (starts, ends)
