"""Selectors for ranks that are late by turns: when a plan has a selector, and its proof for every late rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from jaxcomm import plan, planner
from jaxcomm.plan.files import decode, encode
from jaxcomm.plan.values import ANY_RANK, Entry
from jaxcomm.profile import Bucket, Profile
from jaxcomm.report.plan import explanation
from tests.planner.profiles import made

NBYTES = 2**30


def late_by_turns(
    delays: Sequence[float], ranks: int = 4, turn: int = 1, buckets: Sequence[Bucket] = (), alpha: float = 3e-6
) -> Profile:
    """A profile in which the late rank changes every `turn` steps. Four ranks sum 1 GiB in 0.1 s."""
    source = made(ranks, None, buckets, None if buckets else NBYTES, alpha, beta=0.1 / 1.5 / NBYTES)
    arrivals = np.zeros((len(delays), ranks))
    arrivals[np.arange(len(delays)), np.arange(len(delays)) // turn % ranks] = delays
    return Profile.model_validate(source.model_dump(exclude={"hash"}) | {"arrivals": arrivals.tolist()})


def entry_of(result: plan.Plan, nbytes: int = NBYTES) -> Entry:
    return result.collectives[result.index_for(nbytes)]


@pytest.mark.parametrize("turn", [1, 5])
def test_a_schedule_for_whichever_rank_is_late(turn: int) -> None:
    source = late_by_turns([0.2] * 60, turn=turn)
    result = planner.plan(source)
    entry = entry_of(result)
    assert entry.selector is not None and entry.selector.by_turns
    assert entry.selector.early == entry.schedule and not result.roles
    assert entry.selector.seconds < 0.75 * entry.predicted.seconds
    known = planner.plan(made(4, [0.2] * 60, known=NBYTES, beta=0.1 / 1.5 / NBYTES))
    assert entry.selector.seconds == pytest.approx(entry_of(known).predicted.seconds, rel=0.01)
    assert decode(encode(result).encode(), "plan") == result


def test_the_schedules_of_all_late_ranks_are_proved() -> None:
    result = planner.plan(late_by_turns([0.2] * 60))
    entry = entry_of(result)
    assert entry.selector
    early, *late = result.schedules_of(entry.selector)
    assert early.precondition is None
    assert [each.late for each in late] == [0, 1, 2, 3]
    plan.verify(result)
    proved = {schedule for _, _, schedule in result.all_reduces()}
    assert proved >= {early, *late}
    assert len(plan.proofs(result)) == len({*proved, *(s for h in [result.halves or ()] for s in h)})


@pytest.mark.parametrize(
    "delays",
    [[0.2] * 12, [1e-5] * 60, ([0.2] + [0.0] * 2) * 20],
    ids=["too few steps", "too short", "in few steps"],
)
def test_otherwise_there_is_one_schedule(delays: Sequence[float]) -> None:
    assert all(entry.selector is None for entry in planner.plan(late_by_turns(delays)).collectives)


def test_by_less_than_a_tenth_of_a_call_no_rank_is_late() -> None:
    """A call of 1 GiB takes 0.1 s, so a lateness of 8 ms counts as noise."""
    result = planner.plan(late_by_turns([0.008] * 60))
    assert not entry_of(result).selector and entry_of(result, NBYTES // 16).selector


@pytest.mark.parametrize(("alpha", "selects"), [(1e-4, True), (6e-3, False)])
def test_calls_without_a_late_rank_wait_two_latencies_for_the_decision(alpha: float, selects: bool) -> None:
    often_on_time = ([0.2] * 4 + [0.0] * 3) * 12
    assert bool(entry_of(planner.plan(late_by_turns(often_on_time, alpha=alpha))).selector) is selects


def test_one_rank_that_is_always_late_is_no_turn() -> None:
    result = planner.plan(made(4, [0.2] * 60, known=NBYTES, beta=0.1 / 1.5 / NBYTES))
    assert result.roles and not any(each.selector and each.selector.by_turns for each in result.collectives)


def test_several_buckets_share_one_lateness() -> None:
    buckets = [Bucket(name=f"layer{i}", bytes=NBYTES + i, ready_s=0.0) for i in range(3)]
    result = planner.plan(late_by_turns([0.2] * 60, buckets=buckets))
    assert not any(entry_of(result, bucket.bytes).selector for bucket in buckets)
    alone = planner.plan(late_by_turns([0.2] * 60, buckets=buckets[:1]))
    assert entry_of(alone, NBYTES).selector


def test_the_explanation_says_so() -> None:
    result = planner.plan(late_by_turns([0.2] * 60))
    selector = entry_of(result).selector
    assert selector and selector.late.model_dump()["late"] == ANY_RANK
    text = " ".join(explanation.explanation(result).split())
    assert "several schedules, as ranks are late by turns" in text
    assert "if a rank has not arrived" in text
