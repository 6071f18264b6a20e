"""Savings in a plan's tables: none if another schedule is predicted to be faster. Also sizes that were not timed."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from jaxcomm import planner
from jaxcomm.cli import main
from jaxcomm.plan import Plan
from jaxcomm.plan.values import Verdict
from jaxcomm.profile import Sample, fit, save
from jaxcomm.profile.timed_schedules import TimedSchedules
from jaxcomm.report.plan.considered import considered
from jaxcomm.report.plan.explanation import explanation, summary
from jaxcomm.report.run.sites import trial_text
from jaxcomm.report.words import verdict_text
from tests.cli.documents import schema
from tests.planner.test_executors_timed_together import together
from tests.planner.test_timed_schedules import SIZES, entry, profile, timed


def up_to(largest: int, found: TimedSchedules) -> TimedSchedules:
    """The timed schedules without sizes above `largest`."""
    few = [
        each.model_copy(update={"samples": [sample for sample in each.samples if sample.bytes <= largest]})
        for each in found.schedules
    ]
    return found.model_copy(update={"schedules": few})


def words(made: Plan) -> str:
    return " ".join(summary(made).split())


def test_a_loss_is_not_printed_as_a_saving() -> None:
    made = planner.plan(profile(timed(dict.fromkeys(SIZES, 1.5), (0.3, 1.0, 3.0), "ring")))
    chosen = entry(made, 2**20)
    assert chosen.schedule.kind == "direct" and chosen.predicted.ring < 0.7 * chosen.predicted.seconds
    assert "-" not in "".join(row.split()[-1] for row in summary(made).splitlines()[2:3])
    assert "saves none: another schedule is predicted to be faster, but by less" in words(made)
    assert "-4" not in explanation(made).partition("why direct")[2].partition("saves")[2].partition("\n\n")[0]


def test_a_plan_says_up_to_which_size_schedules_were_timed() -> None:
    gains = dict.fromkeys(SIZES, 1.5)
    few, many = (planner.plan(profile(up_to(size, timed(gains)))) for size in (65536, 64 * 2**20))
    sentence = "Schedules were timed with up to 64 KiB. Times of larger calls are assumed to grow"
    assert sentence in words(few) and sentence in " ".join(explanation(few).split())
    assert "were timed with up to" not in words(many)


def test_what_a_latency_alone_was_timed_for_promises_nothing_for_more_bytes() -> None:
    made = planner.plan(profile(up_to(65536, timed(dict.fromkeys(SIZES, 1.5)))))
    assert entry(made, 65536).schedule.kind == "straggler"
    assert {entry(made, size).schedule.kind for size in (65537, 2**20, 2**30)} == {"direct"}


def test_schedules_beyond_the_timed_sizes_are_not_timed() -> None:
    made = planner.plan(profile(up_to(65536, timed(dict.fromkeys(SIZES, 1.5)))))
    verdicts = {(offer.schedule.kind, offer.verdict) for offer in entry(made, 2**20).alternatives}
    assert ("straggler", "not_timed") in verdicts and "below_threshold" not in {verdict for _, verdict in verdicts}
    assert "not_timed" not in {offer.verdict for offer in entry(made, 65536).alternatives}
    assert "not timed: profile with larger --sizes" in explanation(made)
    [row] = [each for each in considered(made)["ranges"] if each["max_bytes"] is None]
    assert "not timed: profile with larger --sizes" in {each["reason"] for each in row["considered"]}


@pytest.mark.parametrize("lax", [1.0, 1.3])
def test_schedules_of_xla_beyond_the_timed_sizes_are_not_timed(lax: float) -> None:
    source = together(lax, "straggler", dict.fromkeys(SIZES, 1.5))
    assert source.timed_schedules
    few = source.model_copy(update={"timed_schedules": up_to(65536, source.timed_schedules)})
    made = planner.plan(few)
    assert (entry(made, 65536).schedule.kind, entry(made, 65536).executor) == ("straggler", "xla")
    assert {(entry(made, size).schedule.kind, entry(made, size).executor) for size in (65537, 2**30)} == {
        ("direct", None)
    }
    offers = entry(made, 2**20).alternatives
    assert "not_timed" in {each.verdict for each in offers if each.executor == "xla"}
    assert "below_threshold" not in {each.verdict for each in offers}


def test_the_schema_lists_the_verdicts_of_alternatives() -> None:
    ranges = schema("considered")["properties"]["ranges"]["items"]["properties"]
    listed = ranges["considered"]["items"]["properties"]["verdict"]["enum"]
    assert listed == [*get_args(Verdict)]


@pytest.mark.parametrize("verdict", get_args(Verdict))
def test_every_verdict_has_its_words(verdict: Verdict) -> None:
    made = planner.plan(profile(timed(dict.fromkeys(SIZES, 1.5))))
    chosen = entry(made, 2**20)
    assert verdict_text(made, chosen, chosen.alternatives[0].model_copy(update={"verdict": verdict}))


def test_a_faster_schedule_says_why_it_was_left() -> None:
    made = planner.plan(profile(timed(dict.fromkeys(SIZES, 1.5))))
    chosen, least = entry(made, 2**20), made.assumptions.min_gain

    def left(saves: float) -> str:
        seconds = (1 - saves) * chosen.predicted.seconds
        update = {"verdict": "below_threshold", "seconds": seconds}
        return verdict_text(made, chosen, chosen.alternatives[0].model_copy(update=update))

    assert left(least / 2) == f"not sure enough: saves {least / 2:.1%} of the chosen one, must save {least:.1%}"
    assert left(0.5) == "not sure enough: saves 50.0% of the chosen one, within the error of the times"


@pytest.mark.parametrize(
    ("trial", "says"),
    [
        ({"outcome": "kept", "plan_s": 3.0, "default_s": 4.0}, "kept: 3 s against 4 s, 25% less"),
        ({"outcome": "dropped", "plan_s": 3.0, "default_s": 4.0}, "25% less, which may be chance"),
        (
            {"outcome": "dropped", "plan_s": 3.0, "default_s": 4.0, "plan_cycle_s": 6.0, "default_cycle_s": 5.0},
            "25% less, but from call to call 20.0% more",
        ),
        (
            {"outcome": "kept", "plan_s": 4.0, "default_s": 4.0, "plan_cycle_s": 4.0, "default_cycle_s": 5.0},
            "0% less, but from call to call 20.0% less",
        ),
        ({"outcome": "dropped", "plan_s": 5.0, "default_s": 4.0}, "5 s against 4 s, 25% more"),
    ],
)
def test_a_trial_says_why_its_outcome_differs(trial: dict[str, object], says: str) -> None:
    assert (trial_text(trial) or "").endswith(says)


def test_the_command_says_up_to_which_size_links_were_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = [Sample(bytes=2**power, seconds=1e-5 + 1e-9 * 2**power) for power in (10, 16)]
    source = profile(None).model_copy(update={"link": fit(samples, "send_recv", 2, "a test")})
    save(source, tmp_path / "p.json")
    assert main(["plan", str(tmp_path / "p.json"), "--dry-run"]) == 0
    assert "Links were timed with up to 64 KiB. Times of larger calls" in " ".join(capsys.readouterr().out.split())
    assert "of up to 65536 bytes" in " ".join(explanation(planner.plan(source)).split())
