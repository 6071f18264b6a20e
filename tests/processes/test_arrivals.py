"""Jobs whose sums XLA runs: the process that holds up a call is named in time by all others, and calls are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jaxcomm.arrivals.watcher import EXIT_CODE
from jaxcomm.profile import dump_file
from jaxcomm.report.dumps.incident import incident
from tests.processes import jobs
from tests.processes.arrivals import CALLS, SCANNED

pytestmark = pytest.mark.slow

DEADLINE_S = 2.0


def run(way: str, **environment: str) -> list[jobs.Process]:
    """A job of three processes in which one behaves in this way."""
    return jobs.run(
        "tests.processes.arrivals",
        way,
        processes=3,
        timeout_s=60,
        JAXCOMM_EXECUTOR="xla",
        JAXCOMM_ARRIVALS="1",
        JAXCOMM_DEADLINE_S=str(DEADLINE_S),
        **environment,
    )


def log(process: jobs.Process, within_s: float = DEADLINE_S + 1) -> str:
    """The line that a process has logged, which must be in time."""
    assert "log" in process.reports, process.output
    found: dict[str, Any] = process.reports["log"]
    assert found["after_s"] < within_s
    return str(found["text"])


def test_a_healthy_job_logs_nothing_and_counts_each_arrival() -> None:
    for process in run("healthy"):
        assert process.status == 0 and "log" not in process.reports, process.output
        sites = process.reports["stats"]["sites"]
        assert sites["psum"]["calls"] == 1 + CALLS and sites["pmax"]["calls"] == 2 * SCANNED
        assert process.reports["stats again"]["sites"]["psum"]["late"] == sites["psum"]["late"]
        for site in sites.values():
            assert site["ranks"] == 3 and sum(site["late"]) == pytest.approx(site["calls"], abs=2) and site["arrivals"]


def test_statistics_show_the_late_rank() -> None:
    for process in run("late"):
        assert process.status == 0, process.output
        site = process.reports["stats"]["sites"]["psum"]
        assert site["calls"] == 1 + CALLS + 8
        assert site["arrivals"][-1] == pytest.approx([0, 0, 0.1], abs=0.09)
        assert max(site["wait_s"][:2]) > 0.4 > site["wait_s"][2]


def test_a_sleeping_process_is_named_by_all() -> None:
    for number, process in enumerate(run("sleeps")):
        assert process.status == 0, process.output
        text = log(process, DEADLINE_S + 1 + (number == 2))  # the late process learns it from the others
        assert "rank 2 of 3 has not arrived after 2." in text and "; 0,1 wait.\n  Rank 2 is process 2 on " in text
        assert f"and was last in pmax #{2 * SCANNED} over 'data' at arrivals.py:" in text
        assert "\n  This call is at arrivals.py:" in text


def test_a_stopped_process_is_named_and_the_others_dump_and_end(tmp_path: Path) -> None:
    found = run("stops", JAXCOMM_EXIT_AT_DEADLINE="1", JAXCOMM_DUMP=str(tmp_path))
    for process in found[:2]:
        assert process.status == EXIT_CODE, process.output
        text = log(process)
        assert "rank 2 of 3 has not arrived" in text
        assert "the process reports nothing any more: it is stopped, killed or unreachable." in text
    together = incident([dump_file.load(str(path)) for path in sorted(tmp_path.iterdir())])
    assert len(together.dumps) == 2
    assert together.culprit is not None and together.culprit.ranks == (2,)
    assert [place.is_missing for place in together.places] == [False, False, True]


def test_a_killed_process_is_named() -> None:
    for process in run("dies")[:2]:
        assert "rank 2 of 3 has not arrived" in log(process)


def test_a_stopped_store_is_named() -> None:
    """Process 0 serves the job's key-value store."""
    for process in run("first stops", JAXCOMM_EXIT_AT_DEADLINE="1")[1:]:
        assert process.status == EXIT_CODE, process.output
        assert "the job's key-value store does not answer: the process that serves the store, usually process 0" in log(
            process
        )
