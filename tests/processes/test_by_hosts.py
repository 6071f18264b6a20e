"""Large collectives go round a ring if it comes to each host once; they are right, with the same bits on all ranks."""

from __future__ import annotations

import pytest

from tests.processes import jobs
from tests.processes.by_hosts import LARGE, SIZES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hosts", "runs"),
    [
        ("abcd", ["direct", "ring", "ring"]),
        ("aabb", ["ring"] * 3),
        ("abab", ["direct"] * 3),
        ("aaaa", ["direct"] * 3),
    ],
)
def test_large_collectives_run_by_where_ranks_are(hosts: str, runs: list[str]) -> None:
    assert SIZES[1] == LARGE
    job = jobs.run("tests.processes.by_hosts", *hosts, processes=4, transport="auto")
    assert [process.status for process in job] == [0] * 4, "\n".join(process.output for process in job)
    for elements, expected in zip(SIZES, runs, strict=True):
        found = {
            name: [process.reports[f"{name} of {elements}"] for process in job]
            for name in ("psum", "psum of pairs", "psum_scatter", "all_gather")
        }
        for name, reports in found.items():
            assert max(each["error"] for each in reports) < 1e-5
            assert [each["runs"] for each in reports] == [["direct" if "pairs" in name else expected]] * 4
        bits = {name: [each["bits"] for each in reports] for name, reports in found.items()}
        assert len({*bits["psum"]}) == len({*bits["all_gather"]}) == 1
        assert len({*bits["psum of pairs"][:2]}) == len({*bits["psum of pairs"][2:]}) == 1
