"""Plans from schedules timed between hosts: the fastest prediction is taken, because the run will try it."""

from __future__ import annotations

import pytest

from jaxcomm import planner
from tests.planner.test_timed_schedules import MIB, RANKS, SIZES, entry, profile, timed

HOSTS = [f"host{rank}" for rank in range(RANKS)]
NOISY = (0.8, 0.9, 1.0, 1.1, 1.2)


@pytest.mark.parametrize("kind", ["straggler", "halving_doubling"])
def test_between_hosts_a_gain_within_the_errors_is_taken(kind: str) -> None:
    tables = timed(dict.fromkeys(SIZES, 1.08), NOISY, kind=kind, executor="messages")
    found = entry(planner.plan(profile(tables, hosts=HOSTS)), 16 * MIB)
    assert found.schedule.kind == kind and found.predicted.error > 0.08
    assert found.predicted.seconds < found.predicted.direct
    on_one_host = entry(planner.plan(profile(tables, hosts=["one"] * RANKS)), 16 * MIB)
    assert on_one_host.schedule.kind == "direct"


def test_between_hosts_no_gain_is_expected_of_slower_schedules() -> None:
    tables = timed(dict.fromkeys(SIZES, 0.95), executor="messages")
    made = planner.plan(profile(tables, hosts=HOSTS))
    assert {entry(made, nbytes).schedule.kind for nbytes in SIZES} == {"direct"}


def test_a_gain_at_one_timed_size_counts_between_hosts() -> None:
    tables = timed({64 * MIB: 1.5}, executor="messages")
    assert entry(planner.plan(profile(tables, hosts=HOSTS)), 64 * MIB).schedule.kind == "straggler"
    assert entry(planner.plan(profile(tables, hosts=["one"] * RANKS)), 64 * MIB).schedule.kind == "direct"
