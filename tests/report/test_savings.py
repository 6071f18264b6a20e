"""Savings in the tables of a plan: none where another schedule is predicted to be faster; sizes that were not timed."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from jaxcomm import planner
from jaxcomm.cli import main
from jaxcomm.plan import Plan
from jaxcomm.plan.values import Verdict
from jaxcomm.profile import Profile, Sample, fit, save
from jaxcomm.profile.timed_schedules import TimedSchedules
from jaxcomm.report.considered import considered
from jaxcomm.report.explanation import explanation, summary
from jaxcomm.report.words import VERDICTS
from tests.cli.documents import schema
from tests.planner.test_executors_timed_together import together
from tests.planner.test_timed_schedules import SIZES, entry, profile, timed


def up_to(largest: int, found: TimedSchedules) -> TimedSchedules:
    """The schedules as if no larger size had been timed."""
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
    assert listed == [*get_args(Verdict)] == [*VERDICTS]


def test_a_schedule_that_was_not_timed_takes_no_less_than_its_links() -> None:
    source = profile(up_to(65536, timed({}, kind="ring", executor="messages", ranks=4)), late_s=0.0, ranks=4)
    beta = 1.7e-8  # a tenth of the rate at which the schedules were timed
    link = source.link.model_copy(update={"beta_s_per_byte": beta})
    unlike = Profile.model_validate(source.model_dump() | {"link": link.model_dump(), "nics": [1.0, 1.0, 1.0, 2.0]})

    modelled = [
        offer.seconds / found.predicted.reference_bytes
        for found in planner.plan(unlike, model_bytes=2**20).collectives
        for offer in found.alternatives
        if offer.schedule.kind == "hierarchical"
    ]
    assert modelled and min(modelled) >= 2 * beta


def test_the_command_says_up_to_which_size_links_were_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = [Sample(bytes=2**power, seconds=1e-5 + 1e-9 * 2**power) for power in (10, 16)]
    source = profile(None).model_copy(update={"link": fit(samples, "send_recv", 2, "a test")})
    save(source, tmp_path / "p.json")
    assert main(["plan", str(tmp_path / "p.json"), "--dry-run"]) == 0
    assert "Links were timed with up to 64 KiB. Times of larger calls" in " ".join(capsys.readouterr().out.split())
    assert "of up to 65536 bytes" in " ".join(explanation(planner.plan(source)).split())
