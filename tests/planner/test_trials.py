"""Plans from profiles with trials of runs: a tried schedule is predicted by its time relative to the default."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxcomm import plan, planner, profile
from jaxcomm.cli import main
from jaxcomm.errors import ProfileError
from jaxcomm.plan.in_force import in_force
from jaxcomm.profile import Link, Profile, Provenance, TriedSchedule
from jaxcomm.profile.run_file import KIND

RANKS, LATE, MIB = 4, 3, 2**20


def hosts(**fields: object) -> Profile:
    """A profile of four hosts with links of 1 Gbit/s, in which the last host is 100 ms late."""
    document = {
        "ranks": RANKS,
        "link": Link(alpha_s=4e-5, beta_s_per_byte=8e-9, source="a test"),
        "arrivals": [[0.1 * (rank == LATE) for rank in range(RANKS)]] * 30,
        "hosts": ["a", "b", "c", "d"],
        "provenance": Provenance(source="a test", tool="pytest"),
    }
    return Profile.model_validate(document | fields)


def run_of(made: plan.Plan, outcome: str, plan_s: float) -> dict[str, object]:
    """The record of a run that has tried a plan's schedule for calls of 16 MiB."""
    trial = {"outcome": outcome, "decided_here": True, "trials": 1, "calls": [32, 32], "plan_s": plan_s}
    site = {"name": "psum", "axes": "d", "plan": made.hash[:8], "ranks": RANKS, "bytes": 16 * MIB, "calls": 80}
    counts = {"failed": 0, "transfer_s": 0.2, "early_bytes_share": 0.0}
    arrivals = {"wait_s": [0.1] * RANKS, "late": [0] * RANKS, "arrivals": [], "work_s": [], "after_arrival_s": []}
    times = {"trial": trial | {"default_s": 0.2, "error_s": 0.002}}
    document = {"format": "jaxcomm-stats", "version": 1, "sites": [site | counts | arrivals | times]}
    return document | {"plans": [in_force(made) | {"axes": ["d"], "since_s": 0.0}]}


def kind(made: plan.Plan, nbytes: int) -> str:
    return made.collectives[made.index_for(nbytes)].schedule.kind


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outcome", "plan_s", "stays"), [("kept", 0.15, True), ("dropped", 0.21, False), ("dropped", 0.19, False)]
)
def test_the_next_plan_follows_the_verdict_of_a_trial(tmp_path: Path, outcome: str, plan_s: float, stays: bool) -> None:
    profile.save(hosts(), tmp_path / "profile.json")
    first = planner.plan(profile.load(tmp_path / "profile.json"))
    tried = first.collectives[first.index_for(16 * MIB)].schedule
    assert tried.kind in ("straggler", "hybrid")
    (tmp_path / "run.json").write_text(json.dumps(run_of(first, outcome, plan_s)))
    assert main(["profile", "import", str(tmp_path / "run.json"), "--into", str(tmp_path / "profile.json")]) == 0
    known = profile.load(tmp_path / "profile.json")
    assert [(each.bytes, each.plan_s, each.is_kept) for each in known.trials] == [(16 * MIB, plan_s, stays)]
    again = planner.plan(known)
    entry = again.collectives[again.index_for(16 * MIB)]
    rows = {row.schedule: row for row in entry.alternatives}
    if stays:
        default = min(row.seconds for row in rows.values() if row.schedule.kind in ("direct", "ring"))
        assert entry.schedule == tried and rows[tried].seconds == pytest.approx(0.75 * default, rel=1e-6)
    else:
        assert entry.schedule != tried and rows[tried].verdict == "slower_here"
    assert kind(again, 64 * MIB) == kind(first, 64 * MIB)  # a trial says nothing about four times the bytes


@pytest.mark.parametrize(("plan_s", "is_kept"), [(0.1, True), (0.4, False)])
def test_a_trial_of_one_default_schedule_is_beside_the_other(plan_s: float, is_kept: bool) -> None:
    fields = {"kind": "direct", "bytes": MIB, "default_s": 0.2, "error_s": 0.001, "plan_s": plan_s, "is_kept": is_kept}
    like = hosts(arrivals=[[0.0] * RANKS] * 30)
    made = planner.plan(profile.with_trials(like, [TriedSchedule.model_validate(fields)], "run.json"))
    entry = made.collectives[made.index_for(MIB)]
    assert (entry.schedule.kind == "direct") == is_kept


def test_a_later_trial_replaces_the_one_before() -> None:
    fields = {"kind": "straggler", "chunks": 96, "bytes": MIB, "default_s": 0.2, "error_s": 0.001}
    tried = [TriedSchedule(**fields, plan_s=seconds, is_kept=seconds < 0.2) for seconds in (0.1, 0.3)]
    once = profile.with_trials(hosts(), tried[:1], "run.json")
    assert profile.with_trials(once, tried[1:], "later.json").trials == tried[1:]


def test_a_run_without_an_ended_trial_is_refused() -> None:
    with pytest.raises(
        ProfileError, match=r"run.json.*has no trial of 4 ranks that has ended.*\n  Cure: run under a plan"
    ):
        profile.with_trials(hosts(), [], "run.json")


def test_other_links_forget_the_trials_on_these() -> None:
    fields = {"kind": "ring", "bytes": MIB, "default_s": 0.2, "error_s": 0.001, "plan_s": 0.1, "is_kept": True}
    known = profile.with_trials(hosts(), [TriedSchedule.model_validate(fields)], "run.json")
    assert profile.at_rate(known, 0.5).trials == []


def test_explain_shows_the_gain_of_each_trial_with_its_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = planner.plan(hosts())
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run_of(made, "dropped", 0.21)))
    assert KIND.validate(json.loads(path.read_text()), "a test").sites[0].trial
    assert main(["explain", str(path)]) == 0
    words = capsys.readouterr().out
    for text in ("-5.0%", "-7.0% to -3.0%", "no clear gain: the default runs", "jaxcomm profile --sizes 16777216"):
        assert text in words
    assert main(["explain", str(path), "--svg", str(tmp_path / "x.svg")]) == 1
    assert "is a run; only the trials of its plans can be explained" in capsys.readouterr().err
