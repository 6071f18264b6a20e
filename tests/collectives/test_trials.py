"""Calls of a plan first run the plan and the default schedule by turns, and keep the plan only if it gains."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcomm
from jaxcomm import ffi, statistics
from jaxcomm.collectives import active_plan, trials
from jaxcomm.errors import JaxcommError
from jaxcomm.plan import Plan
from jaxcomm.report.run import sites
from tests.collectives.lax_cases import P, sharded
from tests.collectives.plans import SPECS, make, selecting

STEPS = 200  # more than the calls of a trial, which are at most 68


@pytest.fixture
def trying(no_plan: None) -> Iterator[None]:
    """Turns trials on, as by default."""
    active_plan.set_trial(True)
    yield
    active_plan.set_trial(False)


def run(plan: Plan, elements: int, steps: int = STEPS) -> dict[str, Any]:
    """The statistics of steps in which rank 3 is 2 ms late. Checks that the sums are right and equal on all ranks."""
    x = np.random.default_rng(0).integers(-1000, 1000, (8, elements)).astype(np.float32)  # sums are exact in any order
    late = lambda v: ffi.delay(v, jnp.where(jax.lax.axis_index("d") == 3, 0.002, 0.0))  # noqa: E731
    step = jax.jit(sharded(lambda v: jaxcomm.psum(late(v), "d", plan=plan), P("d"), P("d"), vma=True))
    for _ in range(steps):
        np.testing.assert_array_equal(np.asarray(step(x)), np.broadcast_to(x.sum(0), x.shape))
    [site] = [site for site in jaxcomm.stats() if site["calls"] and site["plan"] == plan.hash[:8]]
    return site


@pytest.mark.usefixtures("trying")
def test_both_schedules_run_by_turns_and_one_outcome_follows(caplog: pytest.LogCaptureFixture) -> None:
    plan = make((0, None, SPECS["straggler"]))
    site = run(plan, 4096)
    trial = site["trial"]
    assert trial["outcome"] in ("kept", "dropped")
    assert trial["decided_here"]
    assert trial["trials"] == 1
    assert all(16 <= calls <= 32 for calls in trial["calls"])
    by_default = site["early_calls"]
    assert 16 <= by_default <= 36 if trial["outcome"] == "kept" else by_default >= STEPS - 36
    trials._watched._look()
    [line] = [each for each in caplog.messages if plan.hash[:8] in each]
    assert ("no clear gain" in line) == (trial["outcome"] == "dropped")
    event = statistics.stats().events[-1]
    assert (event["text"], event["plan"]) == (line, plan.hash[:8])
    assert event["outcome"] == ("followed" if trial["outcome"] == "kept" else "taken back")
    assert f"{trial['outcome']}: " in sites.sites_table([site])


@pytest.mark.usefixtures("trying")
def test_a_plan_that_is_slower_is_dropped() -> None:
    """Starting the operations of the plan's chunks takes longer than the sum."""
    site = run(make((0, None, {"kind": "straggler", "late": "straggler", "chunks": 700})), 1 << 16, steps=100)
    assert site["trial"]["plan_s"] > site["trial"]["default_s"]
    assert site["trial"]["outcome"] == "dropped"
    assert site["early_calls"] >= 100 - 36


def test_without_trials_calls_keep_to_the_plan(no_plan: None) -> None:
    site = run(make((0, None, SPECS["straggler"])), 4098, steps=80)
    assert "trial" not in site
    assert site["early_calls"] == 0


@pytest.mark.usefixtures("trying")
def test_a_plan_of_the_default_schedule_has_no_trial() -> None:
    assert "trial" not in run(make((0, None, SPECS["direct"])), 4096, steps=80)


@pytest.mark.usefixtures("trying")
def test_init_says_whether_plans_are_tried() -> None:
    plan = make((0, None, SPECS["straggler"]))
    jaxcomm.init(plan=plan, trial=False)
    assert not active_plan.tries(plan.hash)
    jaxcomm.init(plan=plan)
    assert not active_plan.tries(plan.hash), "None leaves it"
    jaxcomm.init(plan=plan, trial=True)
    assert active_plan.tries(plan.hash)
    assert not active_plan.tries(""), "no plan"
    with pytest.raises(JaxcommError, match=r"trial is 'false'\.\n  Cure: give True, False or None"):
        jaxcomm.init(trial="false")  # type: ignore[arg-type]


@pytest.mark.usefixtures("trying")
def test_of_two_schedules_only_late_calls_are_tried() -> None:
    plan = selecting(SPECS["direct"], SPECS["straggler"], 1e-3, ranks=8)
    site = run(plan, 4096)
    assert site["trial"]["outcome"] in ("kept", "dropped")
    never_late = selecting(SPECS["direct"], SPECS["straggler"], 1e3, ranks=8)
    assert "trial" not in run(never_late, 4097, steps=80)


@pytest.mark.usefixtures("trying")
def test_a_step_is_traced_anew_where_trials_begin_or_end() -> None:
    traced = []
    step = jax.jit(lambda x: (traced.append(time.monotonic()), x)[1])
    for tries in (True, False, False, True):
        active_plan.set_trial(tries)
        step(1.0)
    assert len(traced) == 2
