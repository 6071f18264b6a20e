"""`jaxcomm plan --try`: times the best candidates of each byte range, and puts the fastest into the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jaxcomm import plan, planner, profile
from jaxcomm.cli import bench_late, main, plan_try
from jaxcomm.plan import Plan
from jaxcomm.profile import Bucket, Profile
from tests.cli import documents
from tests.cli.test_what_if import one_late

DELAY_S = 0.002


def given() -> Profile:
    return one_late(DELAY_S, ranks=4)


@pytest.fixture
def fake_times(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces timings. Tests set the seconds by kind of schedule. Sizes and delays of timed calls are recorded."""
    asked: dict[str, Any] = {"sizes": [], "delays": [], "default": 1e-3}

    def time_plans(plans: dict[str, Plan | None], delays: Any, nbytes: int, rounds: Any) -> dict[str, bench_late.Turns]:
        count = len([*rounds])
        asked["sizes"].append(nbytes)
        asked["delays"].append(delays)
        kinds = {name: each.collectives[0].schedule.kind if each else "default" for name, each in plans.items()}
        seconds = {name: asked.get(kind, 2e-3) for name, kind in kinds.items()}
        return {name: bench_late.Turns([each] * 10 * count, 0.5, 10 * count) for name, each in seconds.items()}

    monkeypatch.setattr(bench_late, "time_plans", time_plans)
    return asked


def tried(made: Plan, found: Profile, limit_s: float = 60.0) -> plan_try.Tried:
    return plan_try.tried(made, found, limit_s, lambda: None)


def test_a_rank_late_in_some_steps_is_as_late_as_in_those(fake_times: dict[str, Any]) -> None:
    arrivals = [[0.0] * 7 + [0.02 * (step < 20)] for step in range(50)]
    found = one_late(0.02, ranks=8).model_copy(update={"arrivals": arrivals})
    assert tried(planner.plan(found), found).delays == {7: pytest.approx(0.02)}


def test_the_fastest_here_replaces_what_was_predicted(fake_times: dict[str, Any]) -> None:
    made = planner.plan(given())
    fake_times["broadcast"] = 0.5e-3
    found = tried(made, given())
    timed = [entry for entry in found.plan.collectives if entry.measured]
    assert [entry.measured.bytes for entry in timed] == fake_times["sizes"]
    assert found.ranges == len(timed) > 2
    assert found.left == len(made.collectives) - found.ranges
    won = [entry for entry in timed if entry.schedule.kind == "broadcast"]
    assert won, "it is among the best three at some size"
    for entry in won:
        assert (entry.measured.seconds, entry.measured.default) == (0.5e-3, 1e-3)
        [chosen] = [offer for offer in entry.alternatives if offer.verdict == "chosen"]
        assert chosen.schedule == entry.schedule
        assert entry.predicted.seconds == chosen.seconds
        rivals = {each.schedule for each in entry.measured.candidates} - {entry.schedule}
        verdicts = {offer.verdict for offer in entry.alternatives if offer.schedule in rivals}
        assert verdicts - {"ideal_delay"} == {"slower_here"}
    plan.verify(found.plan)


@pytest.mark.parametrize("seconds", [2e-3, 1e-3, 0.99e-3])
def test_the_default_schedule_stays_where_nothing_gains(fake_times: dict[str, Any], seconds: float) -> None:
    kinds = ("straggler", "hybrid", "broadcast", "direct_join", "ring", "halving_doubling")
    fake_times |= dict.fromkeys(kinds, seconds)
    for entry in tried(planner.plan(given()), given()).plan.collectives:
        assert entry.measured is None or entry.schedule.kind == "direct"


def test_late_ranks_are_late_as_profiled_or_less_for_lack_of_time(fake_times: dict[str, Any]) -> None:
    made = planner.plan(given())
    assert tried(made, given()).delays == {3: pytest.approx(DELAY_S)}
    assert fake_times["delays"][0] == {3: pytest.approx(DELAY_S)}
    slow = one_late(10.0, ranks=4)
    assert 0 < tried(planner.plan(slow), slow).delays[3] < 1.0


def test_ranges_beyond_the_limit_keep_the_prediction(
    fake_times: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = planner.plan(given())
    clock = iter(range(10**6))
    monkeypatch.setattr(plan_try.time, "monotonic", lambda: float(next(clock)))
    found = tried(made, given(), limit_s=10.0)
    timed = [entry for entry in made.collectives if entry.predicted.reference_bytes <= plan_try.MOST_BYTES]
    assert 0 < found.ranges < len(timed)
    for entry, before in zip(found.plan.collectives, made.collectives, strict=True):
        assert entry.measured or entry == before


def test_a_plan_that_was_to_be_direct_can_become_a_stragglers(fake_times: dict[str, Any]) -> None:
    direct = planner.plan(given(), min_gain=0.9)
    assert direct.template is None
    fake_times["straggler"] = 0.5e-3
    found = tried(direct, given()).plan
    assert any(entry.schedule.kind == "straggler" for entry in found.collectives)
    assert found.template is not None
    fake_times["straggler"] = 2e-3
    assert tried(direct, given()).plan.template is None


def test_one_size_is_tried_where_it_is_named(fake_times: dict[str, Any]) -> None:
    made = planner.plan(given())
    found = plan_try.tried(made, given(), 60.0, lambda: None, nbytes=12_345_678)
    assert fake_times["sizes"] == [12_345_678]
    [entry] = [entry for entry in found.plan.collectives if entry.measured]
    assert entry.min_bytes <= 12_345_678 <= entry.max_bytes


def test_of_a_step_the_largest_call_is_tried(fake_times: dict[str, Any]) -> None:
    buckets = [Bucket(name=str(size), bytes=size, ready_s=0.001) for size in (1 << 20, 4 << 20)]
    measured = given().model_copy(update={"buckets": buckets})
    made = planner.plan(measured)
    assert made.step
    largest = max(bucket.bytes for bucket in made.step.planned)
    found = plan_try.tried(made, measured, 60.0, lambda: None)
    assert fake_times["sizes"] == [largest] and found.ranges == 1
    [entry] = [entry for entry in found.plan.collectives if entry.measured]
    assert found.plan.step
    for bucket in found.plan.step.planned:
        if entry.min_bytes <= bucket.bytes <= (entry.max_bytes or bucket.bytes):
            assert bucket.schedule == entry.schedule


@pytest.mark.slow
def test_several_hosts_are_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile.save(given(), tmp_path / "given.json")
    hosts = ["plan", str(tmp_path / "given.json"), "--out", str(tmp_path / "plan.json"), "--try"]
    assert main([*hosts, "--hosts", "2+2", "--nic", "host"]) == 1
    assert "this profile has several hosts, but this is one process" in capsys.readouterr().err
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.slow
def test_what_was_measured_is_written_printed_and_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times real schedules, in 2 of the byte ranges."""
    monkeypatch.setattr(plan_try, "MOST_BYTES", 100_000)
    profile.save(given(), tmp_path / "profile.json")
    out = str(tmp_path / "plan.json")
    words = ["plan", str(tmp_path / "profile.json"), "--out", out, "--try", "--try-limit", "2"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "Tried here: " in printed and "rank 3 late by " in printed
    made = plan.load(out)
    measured = [entry.measured for entry in made.collectives if entry.measured]
    assert measured
    assert all(each.seconds > 0 and each.default > 0 for each in measured)
    assert main(["explain", out]) == 0
    assert "Measured by --try for " in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    entries = documents.document(capsys.readouterr().out)["plan"]["collectives"]
    assert any(entry["measured"] for entry in entries)
