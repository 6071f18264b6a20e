"""Several late ranks: the times of their schedules, and the profiles for which the planner chooses them."""

from __future__ import annotations

import numpy as np
import pytest

from jaxcomm import plan, planner, profile, schedules, simulate
from jaxcomm.errors import PlanError
from jaxcomm.plan import files as plan_files
from jaxcomm.profile import Bucket, Profile
from jaxcomm.profile.cluster import Topology
from jaxcomm.report.plan import explanation
from tests.plan import documents
from tests.plan.documents import PLAN
from tests.planner.profiles import made


@pytest.mark.parametrize(
    ("ranks", "late"), [(4, 2), (8, 1), (8, 2), (8, 3), (8, 7), (16, 2), (16, 9), (33, 32), (64, 2)]
)
def test_stragglers_tend_to_the_bound(ranks: int, late: int) -> None:
    degree = ranks - 1 + late
    rounds = [schedules.stragglers(ranks, range(late), times * ranks).num_rounds for times in (1, 2, 7, 100)]
    assert np.diff(rounds).tolist() == [degree, 5 * degree, 93 * degree]  # n more chunks take n − 1 + q more rounds
    assert rounds[0] <= 3 * degree


def test_the_stages_of_a_chain_do_without_those_who_are_not_there_yet() -> None:
    first, second, third = schedules.chain(8, [5, 1], 14).phases
    assert (first.late_ranks, second.late_ranks, third.late_ranks) == ({1, 5}, {1, 5}, {1})
    assert not np.isin(first.table()[:, 1:3], [1, 5]).any()
    assert not (second.table()[:, 1:3] == 1).any()
    assert (second.num_rounds, second.volume, third.num_rounds) == (6, 12, 14 - 1 + 3)


def two_late(ranks: int, first: float, last: float, jitter: float = 1e-4) -> Profile:
    rows = [[0.0] * (ranks - 2) + [first, last + jitter * (step % 3)] for step in range(9)]
    return made(ranks).model_copy(update={"arrivals": rows})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (two_late(8, 0.02, 0.0201), "stragglers"),
        (two_late(8, 0.5, 0.509), "straggler"),
        (two_late(8, 1.0, 2.0), "straggler"),
    ],
    ids=["together", "with a gap", "with a long gap"],
)
def test_two_late_ranks(source: Profile, expected: str) -> None:
    source = source.model_copy(update={"collective": profile.Collective(bytes=10**9, seconds=1.0)})
    result = planner.plan(source)
    assert result.roles == {"straggler": 7, "straggler_2": 6}
    (entry,) = (entry for entry in result.collectives if entry.min_bytes == entry.max_bytes == 10**9)
    assert entry.schedule.kind == expected
    assert {"stragglers", "chain"} <= {row.schedule.kind for row in entry.alternatives}
    plan.verify(result)
    for entry, schedule in zip(result.collectives, result.schedules, strict=True):
        nbytes, link = entry.predicted.reference_bytes, (source.link.alpha_s, source.link.beta_s_per_byte)
        times = [phase.seconds(nbytes, *link) for phase in schedule.phases]
        seconds = simulate.staggered(times, simulate.releases(schedule, source.arrivals))
        assert entry.predicted.seconds == pytest.approx(seconds, rel=1e-8)
        assert entry.predicted.lower_bound <= entry.predicted.seconds
    moved = plan_files.bind(result, {"straggler": 2, "straggler_2": 0})
    plan.verify(moved)


def test_more_ranks_than_a_plan_can_prove_have_one_late_rank() -> None:
    assert planner.plan(two_late(257, 0.02, 0.0201)).roles == {"straggler": 256}


def test_more_ranks_than_can_be_proved_have_one_late_rank_in_a_file_too() -> None:
    spec = {"kind": "stragglers", "late": ["straggler", "second"], "chunks": 257}
    document = PLAN | {
        "matches": PLAN["matches"] | {"ranks": 257},
        "roles": {"straggler": 3, "second": 4},
        "template": schedules.template(257).to_json(),
        "collectives": [documents.entry(0, None, spec)],
        "step": None,
    }
    message = "late names 2 ranks; with 257 ranks, more than 256, only one can be late"
    with pytest.raises(PlanError, match=message):
        plan_files.validate(document, "plan")


def test_two_late_roles_are_two_ranks() -> None:
    result = planner.plan(two_late(8, 0.02, 0.0201))
    with pytest.raises(PlanError, match="which roles binds to 2, 2; they must be different ranks"):
        plan_files.bind(result, {"straggler": 2, "straggler_2": 2})


def test_ranks_that_are_late_at_exactly_the_same_time_are_found() -> None:
    result = planner.plan(two_late(8, 0.02, 0.02, jitter=0.0))
    assert result.roles == {"straggler": 6, "straggler_2": 7}
    assert "stragglers" in {entry.schedule.kind for entry in result.collectives}
    delay = result.assumptions.delay
    assert delay is not None and (delay.late_steps, delay.max_s) == (9, 0.0)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(0.02, 0.0201, {"stragglers"}), (0.02, 0.02, {"stragglers"}), (0.5, 0.52, {"direct_join"})],
    ids=["together", "at the same time", "with a gap"],
)
def test_buckets_use_the_delay_of_two_late_ranks(first: float, last: float, expected: set[str]) -> None:
    buckets = [Bucket(name=f"layer{i}", bytes=10**8 + i, ready_s=0.004 * i) for i in range(4)]
    source = two_late(8, first, last).model_copy(update={"buckets": buckets})
    result = planner.plan(source, time_limit=2.0)
    step = result.step
    assert step is not None
    assert {bucket.schedule.kind for bucket in step.planned} & {
        "stragglers",
        "straggler",
        "direct_join",
        "chain",
    } == expected
    assert step.lower_bound_seconds <= step.seconds < 0.9 * step.plain_seconds
    assert step.delay_s == pytest.approx(last + 1e-4)
    starts = [bucket.before.start_s for bucket in step.planned if bucket.before]
    assert (min(starts) >= first) == (expected == {"direct_join"}), "a lone straggler's others are all there first"
    plan.verify(result)
    text = " ".join(explanation.explanation(result).split())
    assert "The step, if the last of the late ranks is late by" in text


def test_what_backward_hides_needs_no_schedule_for_late_ranks() -> None:
    buckets = [Bucket(name="first", bytes=10**8, ready_s=0.0), Bucket(name="last", bytes=10**9, ready_s=10.0)]
    result = planner.plan(two_late(8, 0.02, 0.03).model_copy(update={"buckets": buckets}), time_limit=2.0)
    (entry,) = (entry for entry in result.collectives if entry.min_bytes == entry.max_bytes == 10**8)
    assert entry.schedule.kind == "direct"
    verdicts = {offer.schedule.kind: offer.verdict for offer in entry.alternatives}
    assert (verdicts["stragglers"], verdicts["chain"]) == ("window_taken", "calls_only")
    assert "not for buckets" in explanation.explanation(result)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "last"), [(0.02, 0.0201), (0.5, 0.509)], ids=["together", "with a gap"])
def test_late_ranks_on_hosts_with_slow_links_between(first: float, last: float) -> None:
    network = Topology(hosts=(0,) * 4 + (1,) * 4, nic="rank", slow=4.0)

    def on_network(schedule: schedules.Schedule, nbytes: int) -> float:
        link = source.link.alpha_s, source.link.beta_s_per_byte
        return simulate.mean_seconds(schedule, nbytes, *link, network, (6, 7), source.arrivals)

    bucket = Bucket(name="all", bytes=2**28, ready_s=0.0)
    source = two_late(8, first, last).model_copy(update={"topology": network, "buckets": [bucket]})
    result = planner.plan(source, time_limit=1.0)
    kinds = {entry.schedule.kind for entry in result.collectives}
    assert "hierarchical" in kinds
    plan.verify(result)
    for entry, schedule in zip(result.collectives, result.schedules, strict=True):
        seconds = on_network(schedule, entry.predicted.reference_bytes)
        assert entry.predicted.seconds == pytest.approx(seconds, rel=1e-8)
        assert entry.predicted.lower_bound <= entry.predicted.seconds
    schedule = result.schedule_for(2**28)
    assert schedule is not None and result.step is not None
    assert schedule.kind == "hierarchical"
    assert len(schedule.late_ranks) == (2 if last - first < 0.001 else 1)
    assert result.step.seconds == pytest.approx(on_network(schedule, 2**28), rel=1e-8), "one bucket is one call"
