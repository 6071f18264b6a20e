"""Selectors of one of two schedules by the lateness in an earlier call: when a plan has a selector, and its saving.

Expected times are computed from the arrivals, step by step, with the lateness that is known at the step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from jaxcomm import plan, planner, simulate
from jaxcomm.plan.files import decode
from jaxcomm.plan.values import Entry
from jaxcomm.profile import Bucket, Profile
from jaxcomm.profile.cluster import Cluster, Topology
from jaxcomm.report.plan import explanation
from jaxcomm.report.plan.considered import considered
from tests.planner.profiles import made

NBYTES = 2**30
KNOWN = 2  # steps from a lateness to the first call that can select by it


def late_by(delays: Sequence[float], ranks: int = 4) -> Profile:
    """A profile in which the last rank is late by `delays`, with a collective of 1 GiB. Four ranks sum it in 0.1 s."""
    return made(ranks, list(delays), known=NBYTES, beta=0.1 / 1.5 / NBYTES)


def entry_of(result: plan.Plan, nbytes: int = NBYTES) -> Entry:
    return result.collectives[result.index_for(nbytes)]


def replayed(result: plan.Plan, source: Profile, delays: Sequence[float], nbytes: int = NBYTES) -> float:
    """The mean time of a plan's calls, from the late rank's arrival on."""
    entry, times = entry_of(result, nbytes), []
    for step, delay in enumerate(delays):
        spec = entry.schedule
        if entry.selector:
            known = delays[step - KNOWN] if step >= KNOWN else np.inf
            spec = entry.selector.early if known < entry.selector.lateness_s else entry.selector.late
        before, after = simulate.phases(
            result.schedule_of(spec), nbytes, source.link.alpha_s, source.link.beta_s_per_byte
        )
        times.append(max(0.0, before - delay) + after)
    return float(np.mean(times))


DRIFT = np.linspace(0.04, 0.002, 60)
NOW_AND_THEN = np.tile(np.repeat([0.06, 0.0], 30), 2)


@pytest.mark.parametrize("delays", [DRIFT, DRIFT[::-1], NOW_AND_THEN], ids=["falls", "rises", "now and then"])
def test_a_lateness_that_lasts_decides_between_two_schedules(delays: np.ndarray) -> None:
    source = late_by(delays)
    result = planner.plan(source)
    entry = entry_of(result)
    assert entry.selector is not None
    assert delays.min() < entry.selector.lateness_s < delays.max()
    assert replayed(result, source, delays) == pytest.approx(entry.selector.seconds, rel=1e-6)
    assert entry.selector.seconds < 0.99 * entry.predicted.seconds
    fixed = entry.model_copy(update={"selector": None})
    static = result.model_copy(update={"collectives": (fixed,) * len(result.collectives)})
    assert replayed(static, source, delays) == pytest.approx(entry.predicted.seconds, rel=1e-6)
    assert plan.verify(result).counts["entries"] == len(result.collectives) + len(result.halves or ())


@pytest.mark.parametrize(
    "delays",
    [
        [0.02] * 60,
        np.random.default_rng(5).permutation(np.linspace(0.001, 0.04, 60)),
        np.linspace(0.04, 0.002, 12),
        [1e-5] * 60,
    ],
    ids=["the same", "one says nothing of the next", "too few steps", "too short"],
)
def test_otherwise_there_is_one_schedule(delays: Sequence[float]) -> None:
    assert all(entry.selector is None for entry in planner.plan(late_by(delays)).collectives)


def test_it_never_promises_more_than_the_link_is_known_by() -> None:
    result = planner.plan(late_by(DRIFT), min_gain=0.2)
    assert all(entry.selector is None for entry in result.collectives)


def test_buckets_that_leave_the_delay_to_others_do_not_take_it_now_and_then() -> None:
    sizes = [NBYTES + i * 2**20 for i in range(4)]
    source = late_by(DRIFT).model_copy(update={"buckets": [Bucket(name=str(s), bytes=s, ready_s=0.0) for s in sizes]})
    result = planner.plan(source)
    plain = [size for size in sizes if result.schedule_of(entry_of(result, size).schedule).precondition is None]
    assert plain, "one bucket's delay"
    assert all(entry_of(result, size).selector is None for size in plain)


def test_on_hosts_as_well() -> None:
    topology = Topology(hosts=(0, 0, 1, 1, 2, 2), nic="rank", slow=4.0)
    source = late_by(4 * DRIFT, ranks=6).model_copy(update={"topology": topology})
    result = planner.plan(source, time_limit=2)
    entry = entry_of(result)
    assert entry.selector is not None
    assert entry.selector.seconds < 0.99 * entry.predicted.seconds
    plan.verify(result)


def test_the_file_and_the_words_say_it() -> None:
    result = planner.plan(late_by(DRIFT))
    again = decode(plan.encode(result), "test")
    assert again == result and again.hash == result.hash
    text = " ".join(explanation.explanation(result).split())
    assert "Calls on CPUs select one of two schedules: " in text and "after a call in which the late rank was" in text
    (row,) = [each["selector"] for each in considered(result)["ranges"] if each["min_bytes"] == NBYTES]
    assert row["early"] == entry_of(result).model_dump(mode="json")["selector"]["early"]


def test_a_sweep_follows_it() -> None:
    result = planner.plan(late_by(DRIFT))
    selector = entry_of(result).selector
    assert selector is not None
    delays = [0.5 * selector.lateness_s, 2 * selector.lateness_s]
    link = result.assumptions.alpha_s, result.assumptions.beta_s_per_byte
    rows = simulate.sweep([4], [NBYTES], delays, Cluster(*link), plan=result)
    for row, spec in zip(rows, (selector.early, selector.late), strict=True):
        late = simulate.Delays([row.delay_s])
        assert row.plan == simulate.seconds(result.schedule_of(spec), NBYTES, late, *link)
