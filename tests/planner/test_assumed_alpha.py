"""Plans from profiles whose α is assumed: no schedule uses a delay, and every report says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxcomm import plan, planner, profile
from jaxcomm.cli import main
from jaxcomm.errors import ProfileError
from jaxcomm.plan import Plan
from jaxcomm.profile import Profile, Sample
from jaxcomm.report import profile_summary
from jaxcomm.report.plan.considered import considered
from jaxcomm.report.plan.explanation import explanation, summary
from jaxcomm.report.plan.step import gantt
from tests.planner.profiles import gradients, made
from tests.report.test_statistics import site

Capture = pytest.CaptureFixture[str]
FIXTURES = Path(__file__).parents[1] / "fixtures"
LARGE = 2**24


def run_of(*sizes: int) -> Profile:
    """The profile of a run that summed buffers of these sizes, with rank 2 late by 20 ms."""
    return profile.from_stats([site(nbytes=nbytes, after_arrival_s=[2e-5 + 1e-10 * nbytes] * 10) for nbytes in sizes])


def uses_a_delay(found: Plan) -> bool:
    """Whether a schedule of the plan waits for a late rank."""
    switched = any(entry.selector for entry in found.collectives)
    return switched or any(schedule.precondition is not None for schedule in found.schedules)


@pytest.mark.parametrize("sizes", [(LARGE,), (LARGE, LARGE), (LARGE, 2 * LARGE - 4)])
def test_a_run_of_one_size_uses_no_delay(sizes: tuple[int, ...]) -> None:
    measured = run_of(*sizes)
    found = planner.plan(measured)
    assert profile.find_straggler(measured).is_late and measured.link.alpha_assumed and found.assumptions.alpha_assumed
    assert not uses_a_delay(found) and not found.roles
    assert not uses_a_delay(planner.plan(measured, min_gain=0.0)), "a margin of the user's measures no α"


def test_a_run_of_two_sizes_uses_the_delay() -> None:
    measured = run_of(4, LARGE)
    found = planner.plan(measured)
    assert not measured.link.alpha_assumed and not found.assumptions.alpha_assumed
    assert found.roles == {"straggler": 2} and uses_a_delay(found)
    assert "assumed" not in explanation(found) + profile_summary.summary(measured)


def test_a_steps_buckets_use_no_delay_on_an_assumed_alpha() -> None:
    buckets = gradients([2**22, 2**23, 2**24], 1e-3)
    trusted = made(8, [0.02] * 20, buckets, alpha=1e-5, beta=1e-10)
    link = trusted.link.model_copy(update={"alpha_assumed": True})
    found = planner.plan(trusted.model_copy(update={"link": link}))
    assert uses_a_delay(planner.plan(trusted)) and not uses_a_delay(found)
    assert found.step is not None and found.step.delay_s == 0
    assert "no delay counted on, as α is assumed" in gantt(found, found.step)


def test_an_executor_timed_at_one_size_uses_no_delay() -> None:
    host = made(8, [0.02] * 20, alpha=1e-5, beta=1e-10)
    one = profile.fit([Sample(bytes=LARGE, seconds=2e-3)], "all_reduce", 8, "GPUs", "direct")
    found = planner.plan(profile.with_executor(host, "fused", one, 8))
    assert found.assumptions.alpha_assumed and not uses_a_delay(found)


@pytest.mark.parametrize(
    ("file", "is_assumed"),
    [
        ("training_log.txt", True),
        ("nvidia_smi_topo.txt", True),
        ("nccl_topology.xml", True),
        ("nccl_tests.txt", False),
        ("pair_rates_of_hosts.txt", True),
        ("pair_rates_of_gpus.txt", False),
    ],
)
def test_importers_mark_an_assumed_alpha(file: str, is_assumed: bool) -> None:
    link = profile.read_any(FIXTURES / file).link
    assert link.alpha_assumed == is_assumed == ("α assumed" in link.source)


def test_a_changed_rate_measures_no_alpha() -> None:
    assert profile.at_rate(run_of(LARGE), 0.5).link.alpha_assumed
    assert not profile.at_rate(run_of(4, LARGE), 0.5).link.alpha_assumed


def test_only_an_assumed_alpha_is_hashed() -> None:
    known, guessed = run_of(4, LARGE), run_of(LARGE)
    assert b"alpha_assumed" not in known.canonical_bytes()
    assert b"alpha_assumed" in guessed.canonical_bytes()
    assert planner.plan(guessed).assumptions.alpha_assumed and not planner.plan(known).assumptions.alpha_assumed
    executor = profile.with_executor(known, "fused", known.link, known.ranks)
    assert b"alpha_assumed" not in executor.canonical_bytes()


def test_reports_say_that_alpha_is_assumed() -> None:
    measured = run_of(LARGE)
    found = planner.plan(measured)
    facts = {line.split("  ")[0]: line for line in profile_summary.summary(measured).splitlines()}
    assert facts["α, a round"].endswith("3 µs, assumed")
    assert facts["fit"].endswith("α assumed: 1 timed call of about one size cannot show it")
    assert "\nα is assumed (3 µs), not measured" in summary(found)
    text = " ".join(explanation(found).split())
    assert "α is assumed, so no schedule that uses a delay was considered." in text
    assert "no rank is late" not in text and "must save" not in text
    assert considered(found)["alpha_assumed"] is True


def test_the_commands_carry_an_assumed_alpha_to_the_plan(tmp_path: Path, capsys: Capture) -> None:
    run, measured, out = (str(tmp_path / name) for name in ("run.json", "profile.json", "plan.json"))
    record: dict[str, Any] = {"format": "jaxcomm-stats", "version": 1, "sites": [site(nbytes=LARGE)]}
    Path(run).write_text(json.dumps(record))
    assert main(["profile", "import", run, "--out", measured]) == 0
    assert main(["plan", measured, "--out", out]) == 0
    assert main(["explain", out]) == 0
    printed = capsys.readouterr().out
    assert printed.count("α is assumed (3 µs), not measured") == 2
    assert not uses_a_delay(plan.load(out)) and plan.load(out).assumptions.alpha_assumed


@pytest.mark.parametrize("value", [1, "true", None])
def test_a_broken_mark_is_refused(value: object) -> None:
    document = run_of(LARGE).model_dump()
    document["link"]["alpha_assumed"] = value
    with pytest.raises(ProfileError, match=r"link\.alpha_assumed"):
        profile.validate(document, "a test")
