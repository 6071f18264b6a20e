"""Plans for hosts that lose time when a host exchanges with several other hosts at once."""

from __future__ import annotations

import pytest

from jaxcomm import planner
from jaxcomm.plan import Plan, files
from jaxcomm.profile import Profile
from jaxcomm.report.plan.explanation import explanation
from jaxcomm.report.profile_summary import summary
from jaxcomm.simulate.incast import FROM_BYTES
from tests.planner.profiles import made

ALPHA, BETA = 2e-3, 1.6e-8


def between_hosts(incast: float | None, ranks: int = 4, alpha: float = ALPHA) -> Profile:
    return made(ranks, None, alpha=alpha, beta=BETA).model_copy(update={"incast": incast})


def kind(found: Plan, nbytes: int) -> str:
    schedule = found.schedule_for(nbytes)
    assert schedule
    return schedule.kind


@pytest.mark.parametrize("ranks", [4, 5, 8])
def test_large_calls_go_round_a_ring_from_where_its_rounds_cost_less(ranks: int) -> None:
    factor = 1.07
    found = planner.plan(between_hosts(factor, ranks))
    even = (2 * (ranks - 1) - 2) * ALPHA / ((factor - 1) * 2 * (ranks - 1) / ranks * BETA)  # bytes
    assert [kind(found, int(times * even)) for times in (0.5, 0.9, 1.1, 100)] == ["direct", "direct", "ring", "ring"]


def test_what_fits_into_queues_goes_to_all_at_once() -> None:
    found = planner.plan(between_hosts(1.07, alpha=1e-5))
    assert [kind(found, 4 * part) for part in (FROM_BYTES - 1024, FROM_BYTES)] == ["direct", "ring"]


@pytest.mark.parametrize("incast", [None, 1.0])
def test_without_incast_direct_is_as_good_as_ever(incast: float | None) -> None:
    found = planner.plan(between_hosts(incast))
    assert {entry.schedule.kind for entry in found.collectives} == {"direct"}


def test_reduce_scatters_and_all_gathers_know_it_too() -> None:
    found = planner.plan(between_hosts(1.1))
    halves = {collective: found.half_for(collective, 2**26) for collective in ("reduce_scatter", "all_gather")}
    assert all(half and half.kind == "ring" for half in halves.values())


def test_profile_plan_and_explanation_say_it() -> None:
    profile = between_hosts(1.07)
    assert profile.hash != between_hosts(None).hash and b"incast" not in between_hosts(None).canonical_bytes()
    assert "a byte takes 7.0% longer" in summary(profile)
    found = planner.plan(profile)
    assert "a byte takes 7.0% longer" in explanation(found)
    assert files.decode(files.encode(found).encode(), "a plan") == found
    assert found.links.incast == 1.07
