"""Small sizes, at which alignment makes times jump: a plan still takes little longer than the best schedule."""

from __future__ import annotations

import pytest

from jaxcomm import planner
from jaxcomm.plan.values import Entry
from jaxcomm.schedules.schedule import ALIGNMENT
from tests.planner.small_sizes import behind, late_by


@pytest.mark.slow
@pytest.mark.parametrize("delay", ["none", "some", "long"])
@pytest.mark.parametrize(("ranks", "latency"), [(4, 100), (4, 1000), (8, 300), (16, 1000), (16, 10_000)])
def test_no_small_size_takes_five_percent_longer_than_the_best_for_it(ranks: int, latency: int, delay: str) -> None:
    source = late_by(ranks, latency, delay)
    result = planner.plan(source)
    for nbytes in (*range(ALIGNMENT, 2**13, ALIGNMENT), 2**13 + 1, 100_001, 2**20):
        assert behind(result, source, nbytes) <= 1.05, nbytes


def test_a_range_is_divided_only_where_alignment_counts() -> None:
    """If latency costs as much as many bytes, alignment hardly changes times, and ranges are few."""

    def small(latency: int) -> list[Entry]:
        entries = planner.plan(late_by(8, latency, "long")).collectives
        return [entry for entry in entries if entry.min_bytes < 2**14]

    assert len(small(100_000)) == 1
    assert len(small(300)) > len(small(3000)) > 1
