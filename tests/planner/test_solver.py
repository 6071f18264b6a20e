"""Schedules that a search finds for a network: proved, executable, between the bound and their start."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from jaxcomm import schedules, simulate
from jaxcomm.plan.solved import SolvedCall
from jaxcomm.plan.specs import build_solved, links_of
from jaxcomm.planner.schedules.bound import lower_bound
from jaxcomm.planner.schedules.network_search import solve
from jaxcomm.profile.cluster import Cluster, Topology
from jaxcomm.program.program import Program, compile
from jaxcomm.program.verifier import verify_program, verify_schedule
from jaxcomm.schedules import Schedule
from jaxcomm.simulate import Network
from tests.program.program_interpreter import sums_in_any_order

NBYTES = 10**6
BETA = 1 / NBYTES  # a buffer takes 1 s within a host


def cluster(*sizes: int, nic: str = "rank", slow: float = 2.0, alpha: float = 0.0) -> Cluster:
    hosts = [host for host, size in enumerate(sizes) for _ in range(size)]
    return Cluster(alpha, BETA, Topology.model_validate({"hosts": hosts, "nic": nic, "slow": slow}))


def starts(network: Cluster, late: int, chunks: int) -> list[Schedule]:
    assert network.topology
    links = links_of(network.topology)
    return [
        schedules.straggler(len(network.topology.hosts), late, chunks),
        schedules.hierarchical(links, chunks, [late], chunks, chunks),
        schedules.hierarchical(links, chunks),
    ]


def took(schedule: Schedule, network: Cluster, late: int, delay: float) -> float:
    """Seconds of a run from the late rank's arrival on."""
    arrivals = [delay * (rank == late) for rank in range(schedule.ranks)]
    lossless = Network(network.alpha, network.beta, network.topology)
    return float(simulate.run(schedule, NBYTES, lossless, arrivals).finish_s.max()) - delay


def solved(network: Cluster, late: int, chunks: int, delay: float, **options: Any) -> SolvedCall:
    """The search's result, after checks that hold for every result."""
    given = starts(network, late, chunks)
    found = solve(given, NBYTES, network, late, delay, **options)
    assert network.topology
    schedule = build_solved(found, len(network.topology.hosts))
    verify_schedule(schedule)
    assert found.bound_s <= found.seconds * (1 + 1e-9) <= found.start_s * (1 + 2e-9)
    if network.topology.nic == "rank":  # without shared links no message overtakes another
        assert found.seconds == pytest.approx(took(schedule, network, late, delay))
        assert found.start_s == pytest.approx(min(took(start, network, late, delay) for start in given))
    return found


# The network, late rank, chunks, delay, greatest allowed seconds after the arrival, and status.
CASES: dict[str, tuple[Cluster, int, int, float, float, str]] = {
    "one host, long delay: k - 1 + log2 n rounds": (cluster(8), 7, 7, 4.0, 9 / 7, "OPTIMAL"),
    "links alike, NICs beside the ports": (cluster(4, 4, slow=1.0), 3, 8, 4.0, 0.75, "OPTIMAL"),
    "NIC per rank": (cluster(4, 4, slow=2.0), 3, 8, 4.0, 1.25, "FEASIBLE"),
    "NIC per rank, slower": (cluster(4, 4, slow=4.0), 3, 8, 4.0, 1.75, "FEASIBLE"),
    "NIC per rank, slower, latency": (cluster(4, 4, slow=4.0, alpha=0.02), 3, 8, 0.5, 2.09, "FEASIBLE"),
    "NIC per host": (cluster(4, 4, nic="host", slow=4.0), 3, 8, 4.0, 4.25, "OPTIMAL"),
    "NIC per host, hardly late": (cluster(4, 4, nic="host", slow=4.0), 3, 8, 0.1, 4.6, "FEASIBLE"),
    "late rank alone on its host": (cluster(5, 1), 5, 5, 1.0, 2.8, "OPTIMAL"),
    "a rank per host": (cluster(1, 1, 1, 1), 0, 3, 1.0, 3.4, "OPTIMAL"),
    "far slower between hosts": (cluster(4, 4, 4, 4, slow=1000.0), 3, 4, 4.0, 1100.0, "FEASIBLE"),
    "the same, NIC per host": (cluster(4, 4, nic="host", slow=1000.0), 3, 4, 4.0, 1100.0, "FEASIBLE"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_found_beside_the_bound(name: str) -> None:
    network, late, chunks, delay, most, status = CASES[name]
    found = solved(network, late, chunks, delay, time_limit=1.0)
    assert found.seconds <= most * (1 + 1e-6)
    assert found.status == status


@pytest.mark.slow
def test_delays_change_what_is_found() -> None:
    """The search also chooses the sums before the arrival, so results differ between short and long delays."""
    network = cluster(4, 4, slow=2.0)
    for_none, for_long = (build_solved(solved(network, 3, 8, delay), 8) for delay in (0.0, 4.0))
    assert took(for_none, network, 3, 0.0) < took(for_long, network, 3, 0.0)
    assert took(for_long, network, 3, 4.0) < took(for_none, network, 3, 4.0)


def test_without_time_the_best_start_stays() -> None:
    found = solved(cluster(3, 2, 2, nic="host"), 3, 6, 1.0, time_limit=0.0)
    assert found.seconds <= found.start_s


@pytest.mark.slow
def test_equal_arguments_give_equal_schedules() -> None:
    first, second = (solved(cluster(4, 4, slow=4.0, alpha=0.01), 7, 8, 0.5, seed=3) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("seed", range(12))
def test_random_networks(seed: int) -> None:
    dice = random.Random(seed)
    sizes = [dice.randrange(1, 4) for _ in range(dice.randrange(1, 4))] + [1 + dice.randrange(2)]
    slow, nic, alpha = 1 + dice.randrange(20) / 4, dice.choice(["rank", "host"]), dice.choice([0.0, 0.1])
    late, chunks, delay = dice.randrange(sum(sizes)), dice.randrange(1, 8), dice.choice([0.0, 0.3, 5.0])
    found = solved(cluster(*sizes, nic=nic, slow=slow, alpha=alpha), late, chunks, delay, time_limit=0.1)
    schedule = build_solved(found, sum(sizes))
    data = compile(schedule)
    verify_program(data, schedule)
    assert sums_in_any_order(Program.decode(data), 37)


def test_what_is_not_made_along_trees_is_refused() -> None:
    with pytest.raises(ValueError, match=r"of the \w+ schedule: rank \d gets or passes on chunk \d twice"):
        solve([schedules.broadcast(8, 7)], NBYTES, cluster(4, 4), 7, 1.0)


def least(network: Cluster, late: int, chunks: int, delay: float) -> float:
    """The least time of any schedule, by trying every order of messages and of exchanges."""
    topology = network.topology
    assert topology
    ranks = len(topology.hosts)
    pairs = [(src, dst, both) for src in range(ranks) for dst in range(ranks) for both in (False, True) if src != dst]
    everyone, best = frozenset(range(ranks)), float("inf")
    Held = dict[tuple[int, int], tuple[frozenset[int], float]]  # (rank, chunk) -> contributing ranks, and the time

    def search(held: Held, free: dict[tuple[str, int, bool], float], sent: int, began: float) -> None:
        nonlocal best
        if all(parts == everyone for parts, _ in held.values()):
            best = min(best, max(time for _, time in held.values()) - delay)
        if sent >= 2 * (ranks - 1) * chunks:
            return
        for (src, dst, both), chunk in itertools.product(pairs, range(chunks)):
            (mine, ready), (theirs, known) = held[src, chunk], held[dst, chunk]
            if (mine & theirs and not mine > theirs) or (both and (mine & theirs or src > dst)):
                continue
            remote = topology.hosts[src] != topology.hosts[dst]
            ports = [("out", src, remote), ("in", dst, remote), ("out", dst, remote), ("in", src, remote)][
                : 2 + 2 * both
            ]
            there = max(delay * (late in (src, dst)), known * both)
            start = max(ready, there, *(free.get(port, 0.0) for port in ports))
            done = start + network.alpha + (topology.slow if remote else 1.0) / chunks
            if start >= began and done - delay < best:
                got: Held = {(rank, chunk): (mine | theirs, max(known, done)) for rank in (dst, src)[: 1 + both]}
                search({**held, **got}, {**free, **dict.fromkeys(ports, done)}, sent + 1 + both, start)

    cells = itertools.product(range(ranks), range(chunks))
    search({(rank, chunk): (frozenset([rank]), delay * (rank == late)) for rank, chunk in cells}, {}, 0, 0.0)
    return best


@pytest.mark.parametrize(("sizes", "chunks"), [((2,), 2), ((1, 1), 2), ((2, 1), 1), ((1, 1, 1), 1), ((3,), 1)])
@pytest.mark.parametrize("delay", [0.0, 0.4, 3.0])
def test_the_bound_is_below_every_schedule(sizes: tuple[int, ...], chunks: int, delay: float) -> None:
    for late, alpha, slow in itertools.product(range(sum(sizes)), (0.0, 0.2), (1.0, 2.5)):
        network = cluster(*sizes, slow=slow, alpha=alpha)
        bound, best = lower_bound(chunks, NBYTES, network, late, delay), least(network, late, chunks, delay)
        assert bound <= best * (1 + 1e-9)
        assert best <= solved(network, late, chunks, delay, time_limit=0.02).seconds * (1 + 1e-9)
