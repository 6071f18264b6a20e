"""Mistakes of one rank are one error on every rank, which names both sides; then the processes go on."""

from __future__ import annotations

import functools
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from jaxcomm.plan import save
from tests.collectives.plans import SPECS, make
from tests.processes import jobs

TRANSPORTS = ["shm", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("tcp", "udp"))]
LAST = 3
# Seconds for which a rank is stopped amid a call: over UDP longer than a host may be silent.
AMID_S = {"shm": 2.0, "tcp": 2.0, "udp": 25.0}


@functools.cache
def reports(transport: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "plan.json")
        save(make((0, None, SPECS["ring"]), ranks=4), file)
        found = jobs.run(
            "tests.processes.mistakes", str(file), str(AMID_S[transport]), processes=4, transport=transport
        )
    for process in found:
        assert process.status == 0, process.output
    return [process.reports for process in found]


def errors(transport: str, case: str) -> list[dict[str, Any]]:
    """The processes' reports of a case, which must leave them usable."""
    found = [report[case] for report in reports(transport)]
    assert [each["usable"] for each in found] == [True] * 4
    return found


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_connects_later_than_the_others_is_awaited(transport: str) -> None:
    assert [each["error"] for each in errors(transport, "late joiner")] == [""] * 4


@pytest.mark.parametrize(
    ("case", "one", "other"),
    [
        ("other shape", r"psum over 'd', f32\[2\]", r"psum over 'd', f32\[4\]"),
        ("other dtype", r"psum over 'd', s8\[4\]", r"psum over 'd', f32\[4\]"),
        ("other reduction", "pmax over 'd'", "psum over 'd'"),
        ("other collective", "all_gather over 'd'", "psum_scatter over 'd'"),
        ("other order", "pmax over 'd'", "psum over 'd'"),
        ("other operand shape", r"psum over 'd', f32\[5\]", r"psum over 'd', f32\[4\]"),
        ("other operand dtype", r"psum over 'd', s32\[4\]", r"psum over 'd', f32\[4\]"),
        ("one call more", "psum over .d.*, call 1 of 2, at mistakes", "psum over .d.*, plan [a-z]+, at mistakes"),
        ("one launch more", r"pmax over 'd', f32\[1\]", r"psum over 'd', f32\[4\]"),
        ("other plan", r"psum over 'd', f32\[65536\] \(256 KiB\), plan [0-9a-f]{8}", r"psum .*, plan direct"),
    ],
)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_ranks_in_different_calls_are_named_at_once(transport: str, case: str, one: str, other: str) -> None:
    for each in errors(transport, case):
        assert each["type"] == "MismatchError", each["error"]
        assert LAST in each["calls"] and len(each["calls"]) == 2
        assert re.search(rf"rank {LAST} \(process {LAST} on \S+\) is in {one}", each["error"]), each["error"]
        assert re.search(rf"rank [0-2] \(process [0-2] on \S+\) is in {other}", each["error"]), each["error"]


@pytest.mark.parametrize("case", ["other name", "other line", "one output more", "other elements"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_steps_that_differ_only_beside_their_calls_call_together(transport: str, case: str) -> None:
    assert [each["error"] for each in errors(transport, case)] == [""] * 4


@pytest.mark.parametrize("case", ["never comes", "fails in python", "is stopped"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_does_not_come_is_named_and_may_come_later(transport: str, case: str) -> None:
    *others, last = errors(transport, case)
    # A rank that goes on may find the operands of the others before their errors. Its sum is then right.
    has_failed = case == "never comes" or (case == "is stopped" and last["error"])
    for each in others + [last] * bool(has_failed):
        assert each["type"] == "DeadlineError", each["error"]
        assert (each["missing"], each["waiting"]) == ([LAST], [0, 1, 2])
        assert each["seconds"] >= 2.0
    if case == "fails in python":
        assert last["error"] == "a bug of the user's"


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_is_stopped_amid_a_call_may_go_on(transport: str) -> None:
    for each in errors(transport, "is stopped amid a large call")[:LAST]:
        assert each["type"] == "DeadlineError", each["error"]
        assert each["seconds"] >= AMID_S[transport]
        assert "gone" not in each["error"]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_statistics_cover_calls_between_processes(transport: str) -> None:
    for report in reports(transport):
        (site,) = [site for site in report["statistics"]["sites"] if site["calls"]]
        assert (site["name"], site["axes"], site["ranks"], site["calls"], site["failed"]) == ("psum", "d", 4, 5, 0)
        assert len(site["wait_s"]) == len(site["late"]) == 4 and sum(site["late"]) >= 5
        for arrivals in site["arrivals"]:
            assert len(arrivals) == 4 and min(arrivals) == 0
