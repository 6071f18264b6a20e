"""Between processes all ranks run the same schedule of a trial at each call, and all follow one rank's decision."""

from __future__ import annotations

import pytest

from tests.processes import jobs, trials


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_all_ranks_try_alike_and_follow_one_outcome(transport: str) -> None:
    job = jobs.run("tests.processes.trials", processes=4, transport=transport, timeout_s=120)
    assert [process.status for process in job] == [0] * 4, "\n".join(process.output for process in job)
    reports = [process.reports["trials"] for process in job]
    assert [report["wrong"] for report in reports] == [0] * 4
    assert all(report["rows"].keys() == reports[0]["rows"].keys() for report in reports)
    assert len(reports[0]["rows"]) == 3
    watched = job[0].reports["watched"]
    assert (watched["size"], watched["processes"], watched["plans"]) == (4, [0, 1, 2, 3], [reports[0]["plan"]])
    assert watched["last_in"].keys() == {"0", "1", "2", "3"} and sum(watched["last_in"].values()) == pytest.approx(1)
    for name in reports[0]["rows"]:
        assert watched["trials"][name].startswith(f"{reports[0]['rows'][name]['trial']['outcome']}: ")
        rows = [report["rows"][name] for report in reports]
        assert all((row["plan"], row["early"]) == (reports[0]["plan"], rows[0]["early"]) for row in rows), rows
        found = [row["trial"] for row in rows]
        assert [trial["decided_here"] for trial in found] == [True, False, False, False]
        outcome = found[0]["outcome"]
        assert outcome in ("kept", "dropped")
        assert {trial["outcome"] for trial in found} == {outcome}
        dropped = rows[0]["early"]
        assert 16 <= dropped <= 40 if outcome == "kept" else dropped >= trials.STEPS - 40
