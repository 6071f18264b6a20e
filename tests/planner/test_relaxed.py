"""Step times with drops or averages within groups: compared with formulas and a simulated queue, and reported."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomm import plan, planner, profile, simulate
from jaxcomm.cli import main
from jaxcomm.errors import PlanError
from jaxcomm.plan.files import validate
from jaxcomm.plan.groups import Groups
from jaxcomm.plan.step import Accepted
from jaxcomm.planner.drops.ring_cost import bounded, reliable
from jaxcomm.profile import PacketLoss, Profile
from jaxcomm.report.plan.considered import considered
from jaxcomm.report.plan.step import relaxed_lines, step_lines
from tests.cli import documents
from tests.planner.profiles import gradients, made, on_rails

ALPHA, BETA, NBYTES = 3e-5, 1e-10, 2**24
RACKS = [{"name": "a", "ranks": [0, 1, 2, 3, 4], "uplink": 4.0}, {"name": "b", "ranks": [5, 6, 7], "uplink": 4.0}]


def cluster(sizes: list[int], delays: list[float] | None = None, apart: float = 5e-4, **fields: Any) -> Profile:
    source = made(8, delays, gradients(sizes, apart), alpha=ALPHA, beta=BETA)
    return Profile.model_validate({**source.model_dump(), **fields})


def ring(ranks: int, nbytes: float, beta: float) -> float:
    return 2 * (ranks - 1) * (ALPHA + nbytes / ranks * beta)


def accepted(made_plan: plan.Plan) -> dict[str, Accepted]:
    assert made_plan.step is not None
    return {each.relaxation: each for each in made_plan.step.accepting}


def test_a_bucket_loses_its_share_of_bytes() -> None:
    result = planner.plan(cluster([NBYTES]), drop_bound=0.1)
    schedule = result.schedule_for(NBYTES)
    found = accepted(result)
    assert result.step and schedule and found.keys() == {"drops"}
    assert found["drops"].exact_seconds == result.step.seconds
    assert found["drops"].seconds == pytest.approx(schedule.seconds(math.ceil(0.9 * NBYTES), ALPHA, BETA))


def test_nothing_is_saved_where_nothing_may_be_lost() -> None:
    result = planner.plan(cluster([2**22] * 4, [0.004, 0.005]), drop_budget=0.0)
    found = accepted(result)["drops"]
    assert result.step and found.seconds == found.exact_seconds == result.step.seconds and found.saving == 0


def test_lossy_links_take_what_the_policy_predicts() -> None:
    result = planner.plan(cluster([NBYTES], packet_loss={"rate": 0.01}), drop_bound=0.1)
    found = accepted(result)["drops"]
    assert result.drops and (found.seconds, found.exact_seconds) == (result.drops.seconds, result.drops.bsp_seconds)


def slowest_groups(groups: Groups, seconds: Callable[[int, float], float]) -> float:
    """The slowest group's time, averaged over iterations. `seconds` takes a group's ranks and seconds per byte."""
    across = [[(len(part), min(part) < 5 <= max(part)) for part in iteration] for iteration in groups.iterations]
    slowest = [max(seconds(ranks, BETA * (4 if crosses else 1)) for ranks, crosses in each) for each in across]
    return sum(slowest) / len(slowest)


def test_groups_take_what_the_slowest_group_does() -> None:
    result = planner.plan(cluster([NBYTES], racks=RACKS), drop_bound=0.1)
    schedule, found = result.schedule_for(NBYTES), accepted(result)
    assert result.network and result.groups and schedule and list(found) == ["drops", "groups", "drops_and_groups"]
    assert found["groups"].seconds == pytest.approx(result.groups.mean_s)
    fewer = slowest_groups(result.groups, lambda ranks, beta: ring(ranks, 0.9 * NBYTES, beta))
    assert found["drops_and_groups"].seconds == pytest.approx(fewer)
    sizes, racks = (NBYTES, math.ceil(0.9 * NBYTES)), result.network.topology
    slow = [simulate.phases(schedule, nbytes, ALPHA, BETA, racks)[1] for nbytes in sizes]
    assert [each.exact_seconds for each in found.values()] == pytest.approx([slow[0]] * 3)
    assert found["drops"].seconds == pytest.approx(slow[1])


def test_groups_lose_packets_too() -> None:
    loss = PacketLoss(rate=0.02)
    result = planner.plan(cluster([NBYTES], racks=RACKS, packet_loss=loss), drop_bound=0.1)
    found = accepted(result)
    loss = PacketLoss(rate=0.02, timeout_s=2 * ALPHA)  # UDP's timeout; the plan chooses UDP at this loss
    assert result.groups
    whole = slowest_groups(result.groups, lambda ranks, beta: reliable(ranks, NBYTES, ALPHA, beta, loss))
    lossy = slowest_groups(result.groups, lambda ranks, beta: bounded(ranks, NBYTES, ALPHA, beta, loss, 0.1))
    assert (found["groups"].seconds, found["drops_and_groups"].seconds) == pytest.approx((whole, lossy))
    assert found["groups"].exact_seconds == pytest.approx(reliable(8, NBYTES, ALPHA, 4 * BETA, loss))


def test_gradients_that_no_layer_is_named_after_lose_the_mean() -> None:
    layers = [{"name": "front", "bytes": 3000}, {"name": "back", "bytes": 1000}]
    result = planner.plan(cluster([NBYTES], tolerance={"layers": layers}), drop_bound=0.2, drop_budget=0.1)
    schedule = result.schedule_for(NBYTES)
    assert result.drops and schedule and [layer.share for layer in result.drops.layers] != [0.1, 0.1]
    lost = sum(layer.share * layer.bytes for layer in result.drops.layers) / 4000
    kept = schedule.seconds(math.ceil(NBYTES * (1 - lost)), ALPHA, BETA)
    assert accepted(result)["drops"].seconds == pytest.approx(kept)


def served(jobs: list[tuple[float, float]]) -> float:
    """The time at which a first-come-first-served network has finished the jobs (ready, seconds)."""
    now = 0.0
    for ready, seconds in sorted(jobs):
        now = max(now, ready) + seconds
    return now


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([2**18, 2**22, 3 * 2**22, 2**25]), min_size=1, max_size=4),
    delays=st.lists(st.floats(1e-4, 0.03), min_size=1, max_size=3),
    apart=st.sampled_from([0.0, 1e-4, 5e-3]),
    budget=st.sampled_from([0.02, 0.1]),
)
def test_times_are_those_of_a_network_that_serves_one_bucket_at_a_time(
    sizes: list[int], delays: list[float], apart: float, budget: float
) -> None:
    result = planner.plan(cluster(sizes, delays, apart), drop_bound=0.1, drop_budget=budget, time_limit=0.1)
    step, policy = result.step, result.drops
    assert step and policy
    ends = []
    for delay in delays:
        jobs = []
        for bucket, members in zip(step.planned, step.members(), strict=True):
            schedule, ready = result.schedule_for(bucket.bytes), members[-1].ready_s
            assert schedule
            kept = math.ceil(sum((1 - policy.layer(each.name).share) * each.bytes for each in members) - 1e-6)
            jobs.append((ready + delay, schedule.seconds(kept, ALPHA, BETA)))
            if schedule.precondition:
                jobs.append((ready, schedule.precondition.seconds(kept, ALPHA, BETA)))
        ends.append(served(jobs) - step.gradients[-1].ready_s - delay)
    found = accepted(result)["drops"]
    assert found.seconds == pytest.approx(sum(ends) / len(ends), rel=1e-5, abs=1e-9)
    assert found.seconds <= found.exact_seconds == step.seconds


def test_plans_without_either_do_not_mention_it() -> None:
    result = planner.plan(cluster([2**22] * 3, [0.004]))
    assert result.step and result.step.accepting == ()
    document = result.model_dump(mode="json", exclude={"hash"})
    del document["step"]["accepting"]
    assert validate(document, "older").hash == result.hash


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda found: found["step"]["accepting"].pop(),
            "step.accepting is for drops, groups; it must be for drops, gro",
        ),
        (
            lambda found: found.update(groups=None),
            "step.accepting is for drops, groups, drops_and_groups; it must be for",
        ),
        (lambda found: found["step"]["accepting"].append(found["step"]["accepting"][0]), "step.accepting"),
        (lambda found: found["step"]["accepting"][0].update(seconds=math.nan), r"step.accepting\[0\].seconds"),
        (lambda found: found["step"]["accepting"][0].update(relaxation="luck"), r"step.accepting\[0\].relaxation"),
    ],
)
def test_what_cannot_be_accepted(whole: plan.Plan, change: Any, words: str) -> None:
    document = whole.model_dump(mode="json", exclude={"hash"})
    change(document)
    with pytest.raises(PlanError, match=words):
        validate(document, "test")


@pytest.fixture(scope="module")
def source() -> Profile:
    """A profile for which a plan has every decision."""
    return on_rails(cluster([2**22] * 6, [0.004, 0.005], racks=RACKS), fast=(3e-5, 1e-10), slow=(6e-5, 3e-10))


@pytest.fixture(scope="module")
def whole(source: Profile) -> plan.Plan:
    return planner.plan(source, drop_bound=0.1, time_limit=0.3)


def test_acceptable_relaxations_are_reported(whole: plan.Plan) -> None:
    assert whole.step
    lines = [*relaxed_lines(whole.step)]
    assert [*step_lines(whole.step)][-3:] == lines
    assert lines[1].startswith("If you accept averages within groups: 6.49 ms instead of 8.54 ms, 24.1% less.")
    assert all(each.exact_seconds == whole.step.seconds for each in whole.step.accepting), "racks are the one network"
    rows = considered(whole)["step"]["accepting"]
    assert [row["ratio"] for row in rows] == pytest.approx([1 - each.saving for each in whole.step.accepting])


def counts(lines: Sequence[str], beginnings: Sequence[str]) -> list[int]:
    """For each beginning, the number of lines that start with it."""
    return [sum(line.startswith(words) for line in lines) for words in beginnings]


def test_commands_have_a_line_for_every_decision(
    source: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given_, out = tmp_path / "profile.json", tmp_path / "plan.json"
    profile.save(source, given_)
    assert main(["plan", str(given_), "--out", str(out), "--drop-bound", "10%", "--time-limit", "0.3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    decided = (
        "Rails fast (tcp), slow (tcp): split from",
        "Averages of 24 MiB within groups, 6 iterations in turn: 8.87 ms on average, 14.4 ms for the fastest of all",
        "Up to 0.1 of each gradient may be dropped",
        "The 6 gradient buckets of a step, 24 MiB together",
        "If you accept the drop policy and averages within groups: ",
    )
    assert counts(lines, decided) == [1] * 5
    assert main(["verify", str(out)]) == 0
    proved = capsys.readouterr().out.splitlines()
    subjects = (
        "rails: every size is in one of",
        "groups: 6 iterations, a partition each, at most one group per uplink, all ranks meet, rho = 0",
        "drops: 6 layers, at most 0.1 of each dropped, 0.1 of all",
        "step: 6 gradients, each in one of",
    )
    assert counts(proved, [f"proved  {out}, {words}" for words in subjects]) == [1] * 4
    assert proved[-1].endswith("exactly once, and the other decisions hold")
    assert main(["verify", str(out), "--json"]) == 0
    found = documents.document(capsys.readouterr().out)
    assert [row["kind"] for row in found["rows"]][-4:] == ["rails", "groups", "drops", "step"]
    assert found["proved"] == len(found["rows"])
