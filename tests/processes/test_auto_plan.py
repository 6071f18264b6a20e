"""Processes switch plans in the run: every sum is right, and all follow the same plan in the same calls."""

from __future__ import annotations

import pytest

from tests.processes import jobs

pytestmark = pytest.mark.slow


def test_all_processes_switch_or_measure_at_one_launch_and_sums_stay_exact() -> None:
    job = jobs.run("tests.processes.auto_plan", processes=4, transport="tcp")
    assert [process.status for process in job] == [0] * 4, "\n".join(process.output for process in job)
    reports = [process.reports["auto_plan"] for process in job]
    assert [report["wrong"] for report in reports] == [0] * 4
    assert [report["switched"] for report in reports] == [3] * 4
    assert [[plan["plan"] for plan in report["plans"]] for report in reports] == [["auto"]] * 4, "the last one is none"
    assert len(reports[0]["betas"]) == 3
    assert all(beta > 0 for beta in reports[0]["betas"])
    calls = reports[0]["calls"]
    assert all(report["calls"] == calls for report in reports)
    assert sum(calls.values()) == reports[0]["steps"]
    assert len(calls) == 3
    assert "auto" in calls


def test_without_or_tools_one_line_says_so_and_sums_run_without_a_plan() -> None:
    job = jobs.run("tests.processes.no_planner", processes=2)
    assert [process.status for process in job] == [0, 0], "\n".join(process.output for process in job)
    first, second = (process.reports["no_planner"] for process in job)
    assert first["sums"] == second["sums"] == [1.0] * 3
    sentence = "plan='auto': sums run without a plan: planning needs the package ortools.\n"
    assert first["logged"] == [f"{sentence}  Cure: pip install 'jaxcomm[planner]'"] and second["logged"] == []
    assert first["outcomes"] == ["no plan"]
