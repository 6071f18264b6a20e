"""The schedules that a profile times for a size: the default, then those that are fastest by the links."""

from __future__ import annotations

import pytest

from jaxcomm import planner
from jaxcomm.plan.timed import schedule_name, timed_spec
from jaxcomm.planner.schedules.worth_timing import MOST
from jaxcomm.profile import Link, Profile, Provenance, ScheduleName

KIB, MIB = 2**10, 2**20
SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)


def hosts(ranks: int = 4, late_s: float = 0.0, **fields: object) -> Profile:
    """A profile of hosts with one rank each and links of 1 Gbit/s, in which the last rank is late by `late_s`."""
    document = {
        "ranks": ranks,
        "link": Link(alpha_s=4e-5, beta_s_per_byte=8e-9, source="a test"),
        "arrivals": [[late_s * (rank == ranks - 1) for rank in range(ranks)]] * 30,
        "hosts": [f"host{rank}" for rank in range(ranks)],
        "provenance": Provenance(source="a test", tool="pytest"),
    }
    return Profile.model_validate(document | fields)


UNLIKE = {"nics": [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0]}
RACKS = {
    "racks": [
        {"name": "a", "ranks": [0, 1, 2, 3], "uplink": 4.0},
        {"name": "b", "ranks": [4, 5, 6, 7], "uplink": 4.0},
    ]
}
CASES = {
    "alike": hosts(),
    "late": hosts(late_s=0.1),
    "many": hosts(16, 0.1),
    "unlike NICs": hosts(8, 0.1, **UNLIKE),
    "racks": hosts(8, 0.1, **RACKS),
    "two ranks": hosts(2, 0.1),
    "one host": hosts(8, 0.1, hosts=["one"] * 8),
}


def kinds(profile: Profile, nbytes: int) -> list[str]:
    return [name.kind for name in planner.candidates(profile)(nbytes)]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_candidate_is_a_schedule_that_can_be_timed(case: str) -> None:
    of_size = planner.candidates(CASES[case])
    for nbytes in SIZES:
        names = of_size(nbytes)
        assert 2 <= len(names) <= MOST and len({*names}) == len(names)
        assert names[0] in (ScheduleName(kind="direct"), ScheduleName(kind="ring"))
        assert [schedule_name(timed_spec(name)) for name in names] == names


def test_what_runs_without_a_plan_comes_first() -> None:
    assert kinds(hosts(), 4 * 256 * KIB - 4)[0] == "direct" and kinds(hosts(), 4 * 256 * KIB)[0] == "ring"
    assert {"direct", "ring"} <= {*kinds(hosts(), 16 * MIB)}


def test_schedules_for_a_late_rank_follow_where_one_is_late() -> None:
    assert {"straggler", "hybrid"} & {*kinds(hosts(late_s=0.3), 16 * MIB)[1:3]}
    assert {*kinds(hosts(), 16 * MIB)[:3]} == {"direct", "ring", "halving_doubling"}


@pytest.mark.parametrize("network", [UNLIKE, RACKS], ids=["NICs", "racks"])
def test_schedules_for_hosts_are_timed_where_links_differ(network: dict[str, object]) -> None:
    for late_s in (0.0, 0.3):
        assert {"hierarchical", "halving_doubling_by_hosts"} & {*kinds(hosts(8, late_s, **network), 16 * MIB)}
    assert not {"hierarchical", "halving_doubling_by_hosts"} & {*kinds(hosts(8), 16 * MIB)}


def test_ranks_late_by_turns_have_the_schedules_for_a_late_rank() -> None:
    by_turns = [[0.3 * (rank == step % 4) for rank in range(4)] for step in range(40)]
    assert {"straggler", "hybrid"} & {*kinds(hosts(arrivals=by_turns), 16 * MIB)}
