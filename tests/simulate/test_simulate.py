"""Predicted times: the closed forms against the schedules, the runs against the closed forms, and known results."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomm import schedules, simulate
from jaxcomm.profile.cluster import Cluster, Topology
from jaxcomm.schedules import Op, Schedule
from jaxcomm.simulate import Delays, Network, tune

ALPHA, BETA, NBYTES = 3e-6, 1e-10, tune.ALIGNMENT * math.lcm(2**5, 3, 5**2, 7, 13, 17)  # no chunk is cut unevenly


# One row per schedule and number of ranks. `exact`: every rank is busy in every round, so that no rank gets ahead.
SCHEDULES = [(schedules.ring(n), True) for n in (2, 3, 4, 7, 16)]
SCHEDULES += [(schedules.halving_doubling(n), True) for n in (2, 4, 8, 32)]
SCHEDULES += [(schedules.halving_doubling(n), False) for n in (3, 6, 13)]
SCHEDULES += [(schedules.direct(n), True) for n in (2, 3, 8, 17)]
SCHEDULES += [(schedules.broadcast(n, n // 2), True) for n in (2, 3, 4, 5, 8, 13)]
SCHEDULES += [(schedules.straggler(n, n // 2, k * (n - 1)), True) for n in (2, 3, 4, 7, 8, 16) for k in (1, 2, 5)]
SCHEDULES += [(schedules.straggler(n, 0, k), False) for n in (4, 6, 8, 12, 13) for k in (1, 2, 3, 10, 29)]
SCHEDULES += [(schedules.direct_join(n, n // 2, k * (n - 1)), True) for n in (2, 3, 8) for k in (1, 4)]
SCHEDULES += [(schedules.direct_join(n, 0, k), False) for n in (4, 7) for k in (1, 2, 17)]
SCHEDULES += [(schedules.hybrid(n, 1, k + m * n, k), False) for n in (4, 6, 8) for k in (1, 7, 21) for m in (1, 4)]
NAMES = [f"{schedule.kind}-{schedule.ranks}-{schedule.num_chunks}" for schedule, _ in SCHEDULES]
CASES = pytest.mark.parametrize(("schedule", "exact"), SCHEDULES, ids=NAMES)


def parts(schedule: Schedule) -> tuple[float, float]:
    before = schedule.precondition.seconds(NBYTES, ALPHA, BETA) if schedule.precondition else 0.0
    return before, schedule.seconds(NBYTES, ALPHA, BETA)


@CASES
def test_a_run_of_ranks_that_arrive_together_takes_the_closed_form(schedule: Schedule, exact: bool) -> None:
    run = simulate.run(schedule, NBYTES, Network(ALPHA, BETA))
    predicted = sum(parts(schedule))
    assert simulate.seconds(schedule, NBYTES, Delays(), ALPHA, BETA) == pytest.approx(predicted, rel=1e-12)
    if exact:
        assert run.finish_s.max() == pytest.approx(predicted, rel=1e-9)
    assert run.finish_s.max() <= predicted * (1 + 1e-9)


@CASES
@pytest.mark.parametrize("share", [0.3, 1.0, 4.0])
def test_a_run_with_a_late_rank_takes_the_closed_form(schedule: Schedule, exact: bool, share: float) -> None:
    before, after = parts(schedule)
    delay = share * (before or after)
    late = schedule.late or 0
    arrivals = np.zeros(schedule.ranks)
    arrivals[late] = delay
    took = simulate.run(schedule, NBYTES, Network(ALPHA, BETA), arrivals.tolist()).finish_s.max() - delay
    predicted = simulate.seconds(schedule, NBYTES, Delays([delay]), ALPHA, BETA)
    assert predicted == pytest.approx(max(0.0, before - delay) + after, rel=1e-12)
    assert took <= predicted * (1 + 1e-9)
    if exact and schedule.late is not None:
        assert took == pytest.approx(predicted, rel=1e-9)


@CASES
def test_no_port_is_used_twice_at_once(schedule: Schedule, exact: bool) -> None:
    run = simulate.run(schedule, NBYTES, Network(ALPHA, BETA), np.linspace(0, 1e-3, schedule.ranks).tolist())
    for phase, messages in zip(schedule.phases, run.phases, strict=True):
        assert messages.chunks.sum() == len(phase.table())
        for ranks in (messages.src, messages.dst):
            for rank in range(schedule.ranks):
                mine = np.flatnonzero(ranks == rank)
                order = mine[np.argsort(messages.start_s[mine], kind="stable")]
                occupied = messages.end_s[order] - ALPHA
                assert (messages.start_s[order[1:]] >= occupied[:-1] - 1e-12).all()


def test_a_run_needs_one_arrival_per_rank() -> None:
    with pytest.raises(ValueError, match="arrivals has 3 times for 4 ranks"):
        simulate.run(schedules.ring(4), NBYTES, Network(ALPHA, BETA), [0.0, 0.0, 0.0])


@given(
    delays=st.lists(st.floats(0, 1), min_size=1, max_size=30),
    work=st.lists(st.floats(0, 2), min_size=1, max_size=8),
)
def test_the_exposed_work_is_the_mean_over_the_delays(delays: list[float], work: list[float]) -> None:
    expected = [np.mean([max(0.0, before - delay) for delay in delays]) for before in work]
    assert Delays(delays).exposed(work) == pytest.approx(expected, abs=1e-9)


def test_a_gain_is_a_mean_of_gains_and_not_the_gain_at_the_mean() -> None:
    schedule = schedules.straggler(4, 0, 30)
    before, after = parts(schedule)
    rarely = Delays([0.0] * 9 + [10 * before])
    assert simulate.seconds(schedule, NBYTES, rarely, ALPHA, BETA) == pytest.approx(0.9 * before + after)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 12, 16])
@pytest.mark.parametrize("nbytes", [4, 1000, 12_345, 3 << 20])
def test_the_family_is_counted_as_its_schedules_are(ranks: int, nbytes: int) -> None:
    template = schedules.template(ranks)
    covered, blocks = np.array([1, 2, 3, 7, 11, 30]), np.array([0, 1, 3])
    chunks = covered[:, None] + blocks * ranks
    grid = tune.grid(ranks, nbytes, covered, blocks, ALPHA, BETA)
    for (i, j), count in np.ndenumerate(chunks):
        k = int(covered[i])
        if blocks[j]:
            schedule = schedules.hybrid(ranks, 0, int(count), k, template)
        else:
            schedule = schedules.straggler(ranks, 0, int(count), template)
        before = schedule.precondition
        assert before is not None
        assert grid.before[i, j] == pytest.approx(before.seconds(nbytes, ALPHA, BETA))
        if count <= tune.max_chunks(ranks, nbytes):
            assert grid.after[i, j] == pytest.approx(schedule.seconds(nbytes, ALPHA, BETA))


@pytest.mark.parametrize("nbytes", [4, 64, 65, 576, 1000, 4096])
@pytest.mark.parametrize(
    "schedule", [schedules.ring(8), schedules.direct(8), schedules.straggler(8, 0, 1), schedules.halving_doubling(8)]
)
def test_a_time_counts_the_bytes_of_the_busiest_rank_in_every_round(schedule: Schedule, nbytes: int) -> None:
    """The executor cuts buffers at multiples of 64 bytes. The time is exact only if each message is one chunk."""
    chunks = schedule.num_chunks
    units = -(-nbytes // tune.ALIGNMENT)
    bounds = [min(nbytes, -(-units * chunk // chunks) * tune.ALIGNMENT) for chunk in range(chunks + 1)]
    moved = np.zeros((2, schedule.num_rounds, schedule.ranks))
    for each in schedule.transfers():
        for way, rank in enumerate((each.src, each.dst)):
            moved[way, each.round, rank] += bounds[each.chunk + 1] - bounds[each.chunk]
    exact = moved.max(axis=(0, 2)).sum()
    found = schedule.seconds(nbytes, 0.0, 1.0)
    if schedule.kind == "halving_doubling":
        assert abs(found - exact) <= tune.ALIGNMENT * schedule.num_rounds
    else:
        assert found == exact


@pytest.mark.parametrize("ranks", [3, 4, 8, 16, 100, 1024])
@pytest.mark.parametrize("nbytes", [10**6, 10**8, 10**10])
def test_the_best_chunk_count_is_near_the_root(ranks: int, nbytes: int) -> None:
    """If the delay hides all early work, the best real-valued count without limits is k* = sqrt((L-1)·sβ/α)."""
    best = simulate.tuned_straggler(ranks, nbytes, Delays([math.inf]), ALPHA, BETA)
    depth = (ranks - 1).bit_length()
    root = max(1.0, math.sqrt((depth - 1) * nbytes * BETA / ALPHA))
    allowed = min(root, tune.max_chunks(ranks, nbytes))
    ideal = (allowed - 1 + depth) * (ALPHA + nbytes * BETA / allowed)
    assert best.seconds == pytest.approx(ideal, rel=0.01)
    assert best.covered == best.chunks
    assert best.chunks <= math.ceil(allowed)
    step = nbytes / best.chunks
    assert step >= tune.ALIGNMENT or best.chunks == 1


@pytest.mark.parametrize("delay", [math.inf, 1e-6])
def test_small_buffers_are_not_held_up_by_a_least_chunk(delay: float) -> None:
    """A buffer that is one alignment longer never takes much less time, and no chunk count beats the found count."""
    sizes = np.arange(tune.ALIGNMENT, 160 * tune.ALIGNMENT, tune.ALIGNMENT)
    late = Delays([delay])
    times = np.array([tune.best(8, int(size), late, 1e-6, 1e-9).seconds for size in sizes])
    assert (times[1:] / times[:-1]).min() > 0.97
    for size, found in zip(sizes[::16].tolist(), times[::16], strict=True):
        every = np.arange(1, size // tune.ALIGNMENT + 1)
        assert found <= tune.grid(8, size, every, np.array([0]), 1e-6, 1e-9).best(late).seconds * 1.001


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.integers(2, 200),
    nbytes=st.integers(1, 10**10),
    delays=st.lists(st.floats(0, 0.5), min_size=1, max_size=10),
    alpha=st.sampled_from([0.0, 1e-7, 3e-6, 1e-3]),
    beta=st.sampled_from([0.0, 1e-12, 1e-10, 1e-8]),
)
def test_what_the_search_returns_can_be_had(
    ranks: int, nbytes: int, delays: list[float], alpha: float, beta: float
) -> None:
    late = Delays(delays)
    found = [
        simulate.tuned_straggler(ranks, nbytes, late, alpha, beta),
        simulate.tuned_hybrid(ranks, nbytes, late, alpha, beta),
    ]
    for member in found:
        if member is None:
            assert nbytes <= ranks * tune.ALIGNMENT + tune.ALIGNMENT
            continue
        rest = member.chunks - member.covered
        assert member.covered >= 1 and rest >= 0 and rest % ranks == 0
        assert member.chunks <= tune.max_chunks(ranks, nbytes)
        assert member.seconds == pytest.approx(float(late.exposed(member.before)) + member.after)
        assert member.seconds >= simulate.lower_bound(ranks, nbytes, late, alpha, beta, 1) * (1 - 1e-9)


@settings(max_examples=25, deadline=None)
@given(ranks=st.sampled_from([3, 4, 5, 8]), delay=st.floats(0, 0.03), nbytes=st.sampled_from([10**5, 10**7, 3 * 10**8]))
def test_the_search_finds_the_best_of_all(ranks: int, delay: float, nbytes: int) -> None:
    """The found member is close to the best of 12,000 members. The search may lose 0.2 % to save chunks."""
    late = Delays([delay, 0.0])
    everything = tune.grid(ranks, nbytes, np.arange(1, 200), np.arange(0, 60), ALPHA, BETA)
    best = (late.exposed(everything.before) + everything.after).min()
    assert simulate.best(ranks, nbytes, late, ALPHA, BETA).seconds <= best * 1.003


def test_members_that_cover_more_fit_into_more_of_the_delay() -> None:
    members = tune.covering(8, 10**9, 0.05, ALPHA, BETA, 20)
    assert len(members) > 10
    before = [member.before for member in members]
    assert before == sorted(before)
    assert before[-1] <= 0.05
    after = np.array([member.after for member in members])
    assert (after[1:] <= after[:-1] * tune.SLACK).all()


def test_bound_without_cost_of_bytes_is_rounds_alone() -> None:
    """A noisy profile may have β = 0, even with unlike NICs."""
    topology = Topology(hosts=(0, 1, 2, 3), nic="rank", slow=1.0, nics=(1.0, 50.0, 1.0, 1.0))
    assert simulate.lower_bound(4, 2**20, Delays((0.03,)), 1e-3, 0.0, 1, topology) == pytest.approx(2e-3)


@pytest.mark.parametrize(("ranks", "ports"), [(4, 16), (16, 16), (64, 16), (1024, 1)])
@pytest.mark.parametrize("delay", [0.0, 1e-3, 1.0])
def test_nothing_beats_the_lower_bound(ranks: int, ports: int, delay: float) -> None:
    for row in simulate.sweep([ranks], [2**i for i in range(4, 34, 3)], [delay], Cluster(ALPHA, BETA), ports=ports):
        times = [row.ring, row.halving_doubling, row.broadcast, row.straggler]
        times += [] if row.direct is None else [row.direct]
        assert (row.direct is None) == (ranks - 1 > ports)
        assert min(times) >= row.lower_bound * (1 - 1e-9)


def test_large_buffers_approach_the_bound_when_the_delay_covers_all() -> None:
    row = next(simulate.sweep([1024], [2**40], [1e4], Cluster(ALPHA, BETA), ports=1))
    assert row.straggler == pytest.approx(row.lower_bound, rel=0.01)
    assert row.ring == pytest.approx(2 * row.lower_bound, rel=0.01)


# Bandwidth factors from the table in Devraj et al., section 5. The last row has more chunks than the paper's table.
FACTORS = [(4, 1, 4 / 3), (8, 1, 9 / 7), (16, 1, 18 / 15), (64, 1, 68 / 63), (256, 1, 262 / 255), (8, 8, 58 / 56)]


@pytest.mark.parametrize(("ranks", "multiple", "factor"), FACTORS)
def test_bandwidth_factors_of_the_paper(ranks: int, multiple: int, factor: float) -> None:
    schedule = schedules.straggler(ranks, 0, multiple * (ranks - 1))
    nbytes = schedule.num_chunks * tune.ALIGNMENT
    assert simulate.seconds(schedule, nbytes, Delays([math.inf]), 0.0, 1 / nbytes) == pytest.approx(factor)


def test_a_sweep_goes_to_1024_ranks() -> None:
    sizes = [2**i for i in range(10, 35, 2)]
    rows = list(simulate.sweep([8, 64, 1000, 1024], sizes, [0.0, 1e-3, 0.1], Cluster(ALPHA, BETA)))
    assert len(rows) == 4 * len(sizes) * 3
    assert [(row.ranks, row.nbytes, row.delay_s) for row in rows[:2]] == [(8, 1024, 0.0), (8, 1024, 1e-3)]


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("make", [schedules.straggler, schedules.direct_join])
def test_a_join_passes_once_through_every_port(make: Callable[[int, int, int], Schedule], ranks: int) -> None:
    sends, receives = simulate.ports(make(ranks, ranks - 1, 4 * (ranks - 1)))
    assert max(sends.max(), receives.max()) == pytest.approx(1)
    assert sends[-1] == receives[-1] == pytest.approx(1)
    assert sends[:-1] == pytest.approx(1)


def test_ports_count_what_each_step_reads_and_stores_elsewhere() -> None:
    # Rank 0 reads and adds rank 1's chunk, and stores the sum in rank 1's memory.
    two = Schedule.from_table([(0, 1, 0, 0, Op.REDUCE), (1, 0, 1, 0, Op.COPY)], kind="", ranks=2, num_chunks=1)
    assert [each.tolist() for each in simulate.ports(two)] == [[1, 1], [1, 1]]
