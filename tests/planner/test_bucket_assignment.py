"""Buckets that use the delay, compared with a job-by-job simulation and with every combination of options."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomm.plan.values import Plain
from jaxcomm.planner.step.bucket_solver import assign
from jaxcomm.planner.step.jobs import ATOMS, Atoms, Jobs, Option
from jaxcomm.planner.step.queue import Floats
from jaxcomm.profile import Bucket


def stages(delays: Sequence[float]) -> Floats:
    return np.array([np.zeros(len(delays)), delays])


def queue_end(
    chosen: Sequence[tuple[float, float, float]],
    delay: float,
    order: np.random.Generator | None = None,
    first: Sequence[float] = (),
) -> float:
    """The time at which a network has finished all jobs (ready, before, after); see `planner.step.queue`.

    Jobs are simulated one by one. `first` is the time from a bucket's readiness until its first part may start; by
    default it is 0.
    """
    first = first or [0.0] * len(chosen)
    waiting = [(ready + wait, 0, i) for i, ((ready, _, _), wait) in enumerate(zip(chosen, first, strict=True))]
    waiting += [(ready + delay, 1, i) for i, (ready, _, _) in enumerate(chosen)]
    done: set[int] = set()
    now = 0.0
    while waiting:
        can = [job for job in waiting if job[0] <= now and (job[1] == 0 or job[2] in done)]
        if not can:
            now = min(job[0] for job in waiting if job[0] > now)
            continue
        job = can[order.integers(len(can))] if order else can[0]
        waiting.remove(job)
        done.add(job[2])
        now += chosen[job[2]][1 + job[1]]
    return now


SECONDS = st.integers(0, 40).map(lambda ticks: ticks / 8)  # exact in binary, so that sums are exact


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=6),
    delays=st.lists(SECONDS, min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_the_step_ends_when_the_queue_is_empty(
    jobs: list[tuple[float, float, float]], delays: list[float], seed: int
) -> None:
    """The end is the same in any order of jobs. Every bucket has only one option."""
    jobs = sorted(jobs)
    atoms = Atoms.all([Bucket(name=str(i), bytes=i + 1, ready_s=ready) for i, (ready, _, _) in enumerate(jobs)])
    options = {i + 1: [Option(Plain(kind="ring"), before, after)] for i, (_, before, after) in enumerate(jobs)}
    found = assign(Jobs(atoms.ready, atoms.runs(1), options, 0.0), stages(delays), time_limit=1.0, seed=0)
    last = max(ready for ready, _, _ in jobs)
    for order in (None, np.random.default_rng(seed)):
        ends = [queue_end(jobs, delay, order) - last - delay for delay in delays]
        assert found.seconds == pytest.approx(np.mean(ends), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    jobs=st.lists(st.tuples(SECONDS, SECONDS, SECONDS, st.integers(0, 2)), min_size=1, max_size=6),
    arrivals=st.lists(st.tuples(SECONDS, SECONDS, SECONDS).map(sorted), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_parts_wait_for_the_late_ranks_that_they_need(
    jobs: list[tuple[float, float, float, int]], arrivals: list[list[float]], seed: int
) -> None:
    jobs = sorted(jobs)
    atoms = Atoms.all([Bucket(name=str(i), bytes=i + 1, ready_s=job[0]) for i, job in enumerate(jobs)])
    options = {
        i + 1: [Option(Plain(kind="ring"), before, after, stage=stage)]
        for i, (_, before, after, stage) in enumerate(jobs)
    }
    there = np.array([[0.0, *times] for times in arrivals]).T
    found = assign(Jobs(atoms.ready, atoms.runs(1), options, 0.0), there, time_limit=1.0, seed=0)
    for order in (None, np.random.default_rng(seed)):
        ends = [
            queue_end([job[:3] for job in jobs], step[-1], order, [step[job[3]] for job in jobs]) - step[-1]
            for step in there.T.tolist()
        ]
        assert found.seconds == pytest.approx(np.mean(ends) - jobs[-1][0], abs=1e-9)


def family(size: int) -> list[Option]:
    """Invented options for a bucket, in which no part, 30 % or all of it is covered by the delay."""
    found = []
    for share in (0.0, 0.3, 1.0):
        before, after = 0.007 * size * share, 0.001 + 0.01 * size * (1.5 - 0.5 * share) + 0.0002 * (share > 0)
        found.append(Option(Plain(kind="ring"), before, after))
    return found


def partitions(count: int) -> list[list[tuple[int, int]]]:
    """All ways to cut `count` items in a row into runs (first, last)."""
    cuts = itertools.chain.from_iterable(itertools.combinations(range(1, count), k) for k in range(count))
    return [list(zip([0, *cut], [c - 1 for c in [*cut, count]], strict=True)) for cut in cuts]


@settings(max_examples=20, deadline=None)
@given(
    ready=st.lists(st.floats(0, 0.02), min_size=1, max_size=4),
    sizes=st.lists(st.sampled_from([1, 2, 3]), min_size=4, max_size=4),
    delays=st.lists(st.floats(0, 0.03), min_size=1, max_size=3),
    min_gain=st.sampled_from([0.0, 0.02, 0.2]),
    merge=st.booleans(),
)
def test_the_solver_finds_the_best_buckets(
    ready: list[float], sizes: list[int], delays: list[float], min_gain: float, merge: bool
) -> None:
    """Compares with all partitions of the gradients, and all combinations of options for the sizes of buckets."""
    ready = sorted(ready)
    atoms = Atoms.all([Bucket(name=str(i), bytes=sizes[i], ready_s=at) for i, at in enumerate(ready)])
    runs = atoms.runs(len(ready) if merge else 1)
    options = {run.bytes: family(run.bytes) for run in runs}
    jobs = Jobs(atoms.ready, runs, options, min_gain)
    found = assign(jobs, stages(delays), time_limit=20.0, seed=0)

    def cost(buckets: Sequence[tuple[int, int]], choice: dict[int, int]) -> float:
        penalty = 0.0
        row: list[tuple[float, float, float]] = []
        for first, last in buckets:
            size = sum(sizes[first : last + 1])
            option = options[size][choice[size]]
            penalty += min_gain * options[size][0].after * (choice[size] > 0)
            row.append((ready[last], option.before, option.after))
        ends = [queue_end(row, delay) - ready[-1] - delay for delay in delays]
        return float(np.mean(ends)) + penalty

    best = np.inf
    for buckets in partitions(len(ready)) if merge else [[(i, i) for i in range(len(ready))]]:
        used = sorted({sum(sizes[first : last + 1]) for first, last in buckets})
        for choice in itertools.product(*(range(len(options[size])) for size in used)):
            best = min(best, cost(buckets, dict(zip(used, choice, strict=True))))
    assert found.status == "OPTIMAL"
    packing = found.packing
    mine = cost([(run.first, run.last) for run in packing.runs], packing.choice)
    assert best - 1e-9 <= mine <= best + 1e-4 * best + 1e-5
    assert found.seconds == pytest.approx(mine - jobs.min_savings(packing), abs=1e-9)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=80))
def test_many_gradients_become_few_atoms(sizes: list[int]) -> None:
    atoms = Atoms.few([Bucket(name="g", bytes=size, ready_s=float(i)) for i, size in enumerate(sizes)])
    assert len(atoms.ready) <= ATOMS
    assert (atoms.starts[0], atoms.starts[-1]) == (0, len(sizes)) and list(atoms.starts) == sorted({*atoms.starts})
    assert sum(run.bytes for run in atoms.runs(1)) == sum(sizes)
    assert list(atoms.ready) == [start - 1 for start in atoms.starts[1:]]
    if len(sizes) > ATOMS:  # an atom has one gradient, or not many more bytes than 1/ATOMS of all
        for first, after in itertools.pairwise(atoms.starts):
            assert after - first == 1 or sum(sizes[first:after]) <= sum(sizes) / ATOMS + 2 * max(sizes[first:after])
