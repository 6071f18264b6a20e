"""Plans for hosts that lose a rail: schedules made in advance for each host and rail, where they gain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jaxcomm import plan, planner
from jaxcomm.plan.limits import MAX_LISTED
from jaxcomm.profile import Profile
from jaxcomm.profile.changes import without_rail
from jaxcomm.report.plan.explanation import explanation
from tests.planner.profiles import STEADY, made, on_rails

MIB = 2**20
HALVES = {"eth0": 0.5, "eth1": 0.5}


def on_hosts(ranks: int = 4, per_host: int = 1, shares: dict[str, float] = HALVES, **fields: Any) -> Profile:
    """A profile of hosts with links of 500 Mbit/s and `per_host` ranks each."""
    hosts = [rank // per_host for rank in range(ranks)]
    if per_host > 1:
        fields.setdefault("topology", {"hosts": hosts, "nic": "host", "slow": 8.0})
    link = {"alpha_s": 1e-4, "beta_s_per_byte": 1.6e-8 / (8 if per_host > 1 else 1), "source": "made up"}
    names = [f"host{host}" for host in hosts]
    document = {**made(ranks, None).model_dump(), "link": link, "hosts": names, "rail_shares": shares}
    return Profile.model_validate(document | fields)


def test_each_host_and_rail_has_schedules(tmp_path: Path) -> None:
    found = planner.plan(on_hosts())
    assert [(each.rank, each.rail) for each in found.lost_rails] == [(r, rail) for r in range(4) for rail in HALVES]
    for each in found.lost_rails:
        assert each.topology.nics == tuple(2.0 if rank == each.rank else 1.0 for rank in range(4))
        assert each.ranges[-1].max_bytes is None and each.ranges[0].min_bytes <= MIB
        for one, schedule in zip(each.ranges, each.schedules, strict=True):
            assert one.seconds < 0.9 * one.otherwise
            assert schedule.num_chunks == one.schedule.chunks
        bound = 16 * MIB * 1.6e-8 * 2
        large = next(one for one in each.ranges if one.min_bytes == 16 * MIB or one.reference_bytes > 16 * MIB)
        assert large.seconds < 1.2 * bound * large.reference_bytes / (16 * MIB)
        sent = [0] * 4
        for transfer in each.schedule_for(16 * MIB).transfers():
            sent[transfer.src] += 1
        assert sent[each.rank] == min(sent), "the host that lacks the rail sends least"
    assert found.lost_rails_for(MIB) == found.lost_rails
    assert found.lost_rails_for(1024) == ()
    file = tmp_path / "plan.json"
    plan.save(found, file)
    assert plan.load(file) == found
    assert (
        plan.verify(found).counts["schedules"]
        > plan.verify(found.model_copy(update={"lost_rails": ()})).counts["schedules"]
    )
    assert "If one of 4 hosts loses a rail (eth0, eth1) in the run" in explanation(found).replace("\n    ", " ")


def test_hosts_without_rails_have_no_schedules_for_lost_rails() -> None:
    found = planner.plan(on_hosts(shares={}))
    assert found.lost_rails == ()
    assert "loses a rail" not in explanation(found)


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(on_hosts(2), id="two hosts"),
        pytest.param(on_hosts(4, 2, {"eth0": 0.5, "eth1": 0.5}), id="two hosts of two"),
        pytest.param(on_hosts(shares={"eth0": 1.0}), id="one rail"),
        pytest.param(on_hosts(hosts=[]), id="hosts that are not known"),
        pytest.param(on_hosts(hosts=["a", "a", "b", "c"]), id="hosts of several ranks whose links are not known"),
        pytest.param(on_hosts(9), id="too many"),
        pytest.param(
            on_hosts(arrivals=[[0.0, 0.0, 0.0, delay] for delay in [0.0, 2.0] * 30]), id="a selector by lateness"
        ),
    ],
)
def test_nothing_is_prepared(profile: Profile) -> None:
    found = planner.plan(profile)
    lacking = [each.min_bytes for lost in found.lost_rails for each in lost.ranges]
    assert all(found.selector_for(nbytes) is None for nbytes in lacking)
    if not any(each.selector for each in found.collectives):
        assert found.lost_rails == ()


def test_schedules_for_a_lost_rail_also_gain_while_a_rank_is_late() -> None:
    delays = [0.05 + 1e-4 * (step % 3) for step in range(60)]
    plain, late = planner.plan(on_hosts()), planner.plan(on_hosts(arrivals=[[0.0, 0.0, 0.0, each] for each in delays]))
    assert late.lost_rails and all(lost.ranges[0].min_bytes > MIB for lost in late.lost_rails)
    assert all(lost.ranges[0].min_bytes <= MIB for lost in plain.lost_rails)


def test_a_profile_without_a_rail_has_no_share_of_it() -> None:
    profile = on_rails(on_hosts(shares={"fast": 0.5, "slow": 0.5}), fast=(5e-5, 2e-8), slow=(5e-5, 8e-8))
    left = without_rail(profile, "slow")
    assert left.rail_shares == {} and planner.plan(left).lost_rails == ()


@pytest.mark.slow
def test_many_ranks_of_unlike_links_leave_room_for_few_lost_rails() -> None:
    found = planner.plan(on_hosts(112, 14, nics=[2.0] * 14 + [1.0] * 98), model_bytes=MIB)
    assert found.ranks == 112 and len(found.lost_rails) < 16


def test_a_rail_of_a_small_share_needs_nothing() -> None:
    found = planner.plan(on_hosts(shares={"eth0": 0.9, "eth1": 0.1}))
    assert {each.rail for each in found.lost_rails} == {"eth0"}
    assert found.lost_rails[0].topology.nics[0] == pytest.approx(10)


def test_the_rails_tables_say_what_a_host_loses() -> None:
    profile = on_rails(on_hosts(shares={}), fast=(5e-5, 2e-8), slow=(5e-5, 8e-8))
    found = planner.plan(profile)
    of = {each.rail: max(each.topology.nics) for each in found.lost_rails}
    assert of["fast"] == pytest.approx(5, rel=0.1) and of.get("slow", 1.25) == pytest.approx(1.25, rel=0.1)


def test_ranks_of_a_host_become_slow_together() -> None:
    found = planner.plan(on_hosts(16, 4))
    assert {each.rank for each in found.lost_rails} == {0, 4, 8, 12}
    assert found.lost_rails[-1].topology.nics == (1.0,) * 12 + (2.0,) * 4
    plan.verify(found)


def test_a_plan_holds_no_more_than_can_be_made() -> None:
    found = planner.plan(on_hosts(32, 4))
    listed = {(one.schedule, each.topology) for each in found.lost_rails for one in each.ranges}
    assert sum(32 * spec.chunks for spec, _ in listed) <= MAX_LISTED
    assert len(found.lost_rails) == 16


def test_a_late_rank_of_one_schedule_does_not_prevent_it() -> None:
    found = planner.plan(on_hosts(arrivals=[[0.0, 0.0, 0.0, delay] for delay in STEADY]))
    assert found.roles and found.lost_rails


@pytest.mark.slow
def test_nor_does_a_schedule_that_was_solved_for_a_late_rank() -> None:
    found = planner.plan(on_hosts(6, 2, arrivals=[[0.0] * 5 + [0.01]] * 20))
    assert any(entry.schedule.kind == "transfers" for entry in found.collectives) and found.lost_rails
