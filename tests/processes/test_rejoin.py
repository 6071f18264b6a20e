"""A process dies, is started again by `jaxcomm launch --restart`, and rejoins the training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jaxcomm.distributed.launch.commands import local_coordinator
from jaxcomm.distributed.launch.coordinator import coordinator_command
from tests.processes import fork_server, jobs


def launch(case: str, folder: Path, *options: str, **environment: str) -> subprocess.Popen[str]:
    """Starts `tests.processes.rejoin`."""
    words = ["launch", "-n", "3", "--restart", "1", *options, "--", sys.executable, "-m", "tests.processes.rejoin"]
    return subprocess.Popen(
        [sys.executable, "-m", "jaxcomm.cli", *words, case, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=fork_server.ROOT,
        env={**os.environ, "JAXCOMM_DEADLINE_S": "60", **environment},
    )


def reports_of(*launched: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Returns the reports of all processes, each with its process. One process was started again."""
    found = [each.communicate(timeout=200) for each in launched]
    assert [each.returncode for each in launched] == [0] * len(launched), found
    assert "It is started again: restart 1 of 1." in "".join(errors for _, errors in found)
    lines = [line.partition(f"] {jobs._MARK}") for output, _ in found for line in output.splitlines()]
    return [{"process": int(process.strip("[ ")), **json.loads(text)} for process, mark, text in lines if mark]


def run(case: str, folder: Path, *options: str, **environment: str) -> list[dict[str, Any]]:
    """Runs `tests.processes.rejoin`. Returns the reports of all processes, each with its process."""
    return reports_of(launch(case, folder, *options, **environment))


def ends(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = sorted((each for each in reports if each["case"] == "end"), key=lambda each: each["process"])
    assert [each["process"] for each in found] == [0, 1, 2], reports
    assert [each["restarted"] for each in found] == [False, False, True]
    assert len({(each["step"], each["x"]) for each in found}) == 1
    assert [(each["name"], each["key"]) for each in found] == [(0, [0, 0]), (1, [0, 1]), (0, [0, 0])], (
        "process 0's state"
    )
    return found


@pytest.mark.parametrize(
    ("options", "rails"),
    [
        pytest.param(["--transport", "tcp"], "127.0.0.1,127.0.0.2", id="two rails"),
        pytest.param(["--transport", "udp"], "", id="udp"),
    ],
)
def test_a_killed_process_rejoins_with_the_others_state(options: list[str], rails: str, tmp_path: Path) -> None:
    reports = run("plain", tmp_path, *options, JAXCOMM_RAILS=rails)
    for each in ends(reports)[:2]:
        changes = [(found["processes"], found["left"], found["joined"]) for found in each["generations"]]
        assert changes[-1][0] == [0, 1, 2] and changes[-1][2] == [2]
        assert changes[0][1] == [2] and all(not found["error"] for found in each["generations"])
    causes = [each["cause"] for each in reports if each["case"] == "failure"]
    assert causes and all(
        "rank 2 is gone: process 2 " in cause and "it rejoins when started again" in cause for cause in causes
    )


@pytest.mark.slow
def test_a_process_of_another_launch_joins_a_job_that_has_begun_without_it(tmp_path: Path) -> None:
    address = local_coordinator()
    service = subprocess.Popen(
        [*coordinator_command(address, 3), "--live", "2"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        first = launch("plain", tmp_path, "--join", address, "--numbers", "0..1")
        ended = time.monotonic() + 100
        while not (tmp_path / "trained").exists():
            assert first.poll() is None and time.monotonic() < ended, first.communicate(timeout=200)
            time.sleep(0.1)
        found = ends(reports_of(first, launch("plain", tmp_path, "--join", address, "--numbers", "2")))
    finally:
        service.kill()
        service.wait()
    for each in found[:2]:
        changes = [(found["processes"], found["left"], found["joined"]) for found in each["generations"]]
        assert changes == [
            ([0, 1], [], [0, 1]),
            ([0, 1, 2], [], [2]),
            ([0, 1], [2], []),
            ([0, 1, 2], [], [2]),
        ]


@pytest.mark.slow
def test_a_plan_for_all_runs_again_when_all_are_back(tmp_path: Path) -> None:
    for each in ends(run("plan", tmp_path))[:2]:
        names = {ranks: plan for plan, ranks in each["ran"]}
        assert names[3] not in ("direct", "ring"), "three ranks run the plan"
        assert names.get(2, "direct") in ("direct", "ring"), "two ranks run the default"


@pytest.mark.slow
def test_plans_of_the_run_begin_anew_in_each_generation(tmp_path: Path) -> None:
    found = ends(run("auto", tmp_path))
    assert found[0]["outcomes"].count("begun") == 1 + len(found[0]["generations"])


@pytest.mark.slow
def test_a_preempted_process_leaves_before_a_block_and_rejoins_on_another_host(tmp_path: Path) -> None:
    reports = run("preempted", tmp_path)
    ends(reports)
    causes = {each["cause"].splitlines()[0] for each in reports if each["case"] == "failure"}
    assert causes and all(
        cause.startswith("the progress of the processes") and "process 2 has left" in cause for cause in causes
    )


@pytest.mark.slow
def test_a_state_of_another_shape_is_an_error_of_all(tmp_path: Path) -> None:
    texts = {each["text"] for each in run("unlike", tmp_path) if each["case"] == "error"}
    assert texts == {
        "catch_up: the states of processes 2 differ from that of process 0 in structure, shapes or types.\n"
        "  Cure: build the state in the same way in all processes."
    }
