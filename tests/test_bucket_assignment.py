"""Which buckets use the delay: against a network simulated job by job, and against every combination of options."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomm.plan.values import Plain
from jaxcomm.planner.buckets import Option, assign
from jaxcomm.profile import Bucket
from jaxcomm.simulate import Delays


def queue_end(
    chosen: Sequence[tuple[float, float, float]], delay: float, order: np.random.Generator | None = None
) -> float:
    """When a network that works off (ready, before, after) is done, simulated job by job; see `planner.queue`."""
    waiting = [(ready, 0, i) for i, (ready, _, _) in enumerate(chosen)]
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


SECONDS = st.integers(0, 40).map(lambda ticks: ticks / 8)  # exact in binary, so that sums are


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=6),
    delays=st.lists(SECONDS, min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
def test_the_step_ends_when_the_queue_is_empty(
    jobs: list[tuple[float, float, float]], delays: list[float], seed: int
) -> None:
    """Whatever the order of service; every bucket here has one option only."""
    buckets = [Bucket(name=str(i), bytes=i + 1, ready_s=ready) for i, (ready, _, _) in enumerate(jobs)]
    options = {i + 1: [Option(Plain(kind="ring"), before, after)] for i, (_, before, after) in enumerate(jobs)}
    found = assign(buckets, options, Delays(delays), min_gain=0.0, time_limit=1.0, seed=0)
    last = max(ready for ready, _, _ in jobs)
    for order in (None, np.random.default_rng(seed)):
        ends = [queue_end(jobs, delay, order) - last - delay for delay in delays]
        assert found.seconds == pytest.approx(np.mean(ends), abs=1e-9)


@settings(max_examples=15, deadline=None)
@given(
    ready=st.lists(st.floats(0, 0.02), min_size=1, max_size=4),
    sizes=st.lists(st.sampled_from([1, 2, 3]), min_size=4, max_size=4),
    delays=st.lists(st.floats(0, 0.03), min_size=1, max_size=5),
    min_gain=st.sampled_from([0.0, 0.02, 0.2]),
)
def test_the_solver_finds_the_best_assignment(
    ready: list[float], sizes: list[int], delays: list[float], min_gain: float
) -> None:
    """Against every combination of options."""
    buckets = [
        Bucket(name=str(i), bytes=size, ready_s=at) for i, (at, size) in enumerate(zip(ready, sizes, strict=False))
    ]
    used = sorted({bucket.bytes for bucket in buckets})
    covered = (0.0, 0.2, 0.5, 1.0)
    options = {
        size: [
            Option(
                Plain(kind="ring"), 0.01 * size * 0.7 * share, 0.01 * size * (1.5 - 0.5 * share) + 0.0002 * (share > 0)
            )
            for share in covered
        ]
        for size in used
    }
    found = assign(buckets, options, Delays(delays), min_gain=min_gain, time_limit=5.0, seed=0)

    def cost(choice: Sequence[int]) -> float:
        index = dict(zip(used, choice, strict=True))
        jobs = [(b.ready_s, *options[b.bytes][index[b.bytes]][1:]) for b in buckets]
        seconds = np.mean([queue_end(jobs, delay) - max(ready) - delay for delay in delays])
        penalty = sum(min_gain * options[b.bytes][0].after for b in buckets if index[b.bytes])
        return float(seconds + penalty)

    best = min(map(cost, itertools.product(range(len(covered)), repeat=len(used))))
    assert found.status == "OPTIMAL"
    assert found.seconds <= best + 1e-4 * found.seconds + 1e-6
    assert found.seconds <= found.plain_seconds + 1e-9
