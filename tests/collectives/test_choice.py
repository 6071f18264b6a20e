"""Schedules of calls between processes, with and without a plan."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jaxcomm import schedules
from jaxcomm.collectives import choice
from jaxcomm.collectives.choice import AUTO, PLANS, SizedCall, planned_messages
from jaxcomm.plan.files import validate
from jaxcomm.program.messages import compile_messages
from jaxcomm.schedules.default_schedules import default_schedule
from tests.collectives.plans import SPECS, make

KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("hosts", "nbytes", "way"),
    [
        ((0, 1, 2, 3), 16 * KIB, "flat"),
        ((0, 1, 2, 3), 16 * KIB + 1, "direct"),
        ((0, 1, 2, 3), MIB - 1, "direct"),
        ((0, 1, 2, 3), MIB, "ring"),
        ((3, 1, 0), 2**40, "ring"),
        (tuple(range(64)), 16 * MIB - 1, "direct"),
        (tuple(range(64)), 16 * MIB, "ring"),
        ((0, 0, 1, 1), 128 * KIB - 1, "direct"),
        ((0, 0, 1, 1), 128 * KIB, "ring"),
        ((0, 0, 1, 2), 128 * KIB, "ring"),
        ((0, 1, 1, 0), 16 * MIB, "ring"),
        ((0, 1, 0, 1), 16 * MIB, "direct"),  # the ring would pass each host twice
        ((0, 1, 1, 2, 0, 2), 16 * MIB, "direct"),
        ((5, 5, 5, 5), 64 * KIB, "flat"),
        ((5, 5, 5, 5), 64 * KIB + 1, "direct"),
        ((5,) * 64, 16 * KIB, "flat"),
        ((5,) * 64, 16 * KIB + 1, "direct"),
        ((5, 5, 5, 5), 2**40, "direct"),
        ((0, 1), 2**40, "direct"),  # a ring of two ranks would send the same messages
    ],
)
def test_without_a_plan_the_choice_follows_bytes_ranks_and_hosts(hosts: tuple[int, ...], nbytes: int, way: str) -> None:
    assert default_schedule(nbytes, hosts) == way
    call = len(hosts), nbytes, "float32"

    def made(kind: str, way: str) -> choice.Choice:
        return choice.Choice((f"{kind}/{way}/{len(hosts)}",), "ring" if way == "ring" else "direct")

    assert choice.choose_messages(SizedCall("all_reduce", *call, "", "psum"), hosts) == made("all_reduce", way)
    assert choice.choose_messages(SizedCall("all_reduce", *call, AUTO, "psum"), hosts).plan == AUTO
    half = "ring" if way == "ring" else "direct"
    assert choice.choose_messages(SizedCall("reduce_scatter", *call, "", "psum"), hosts) == made("reduce_scatter", half)
    if nbytes % len(hosts) == 0:
        slice_ = len(hosts), nbytes // len(hosts), "float32"
        assert choice.choose_messages(SizedCall("all_gather", *slice_, "", "psum"), hosts) == made("all_gather", half)


@pytest.mark.parametrize(("hosts", "most"), [((0, 1, 2, 3), 16 * KIB), ((5, 5, 5, 5), 64 * KIB)])
def test_a_planned_direct_call_of_few_bytes_takes_one_round(hosts: tuple[int, ...], most: int) -> None:
    plan = make((0, None, SPECS["direct"]), ranks=4)
    PLANS[plan.hash] = plan
    few, many = (
        choice.choose_messages(SizedCall("all_reduce", 4, nbytes, "float32", plan.hash, "psum"), hosts)
        for nbytes in (most, most + 4)
    )
    assert few == choice.Choice(("all_reduce/flat/4",), plan.hash[:8])
    assert many.schedules != few.schedules and many.plan == plan.hash[:8]


def test_a_plans_direct_schedule_is_not_what_large_calls_run_without_it() -> None:
    plan = make((0, 4 * MIB - 1, SPECS["direct"]), (4 * MIB, None, SPECS["ring"]), ranks=4)
    PLANS[plan.hash] = plan
    hosts = (0, 1, 2, 3)
    call = "all_reduce", 4, 2 * MIB, "float32"
    assert choice.choose_messages(SizedCall(*call, plan.hash, "psum"), hosts).schedules != ("all_reduce/ring/4",)
    assert choice.choose_messages(SizedCall(*call, plan.hash, "psum"), hosts).plan == plan.hash[:8]
    direct, ring = (
        tuple(each.encode() for each in compile_messages(make_schedule(4)))
        for make_schedule in (schedules.direct, schedules.ring)
    )
    assert planned_messages(plan) == [(0, "direct", ()), (16 * KIB + 1, "direct", direct), (4 * MIB, "ring", ring)]
    small = make((0, 16 * KIB, SPECS["direct"]), (16 * KIB + 1, None, SPECS["ring"]), ranks=4)
    assert planned_messages(small) == [(0, "direct", ()), (16 * KIB + 1, "ring", ring)]
    only_large = make((0, 64 * KIB - 1, SPECS["ring"]), (64 * KIB, None, SPECS["direct"]), ranks=4)
    assert planned_messages(only_large) == [(0, "ring", ring), (64 * KIB, "direct", direct)]


def test_a_trial_compares_a_plan_with_what_runs_without_it() -> None:
    plan = make((0, 4 * MIB - 1, SPECS["direct"]), (4 * MIB, None, SPECS["ring"]), ranks=4)
    PLANS[plan.hash] = plan

    def default(nbytes: int, hosts: tuple[int, ...] | None, tries: bool = True) -> str | None:
        call = SizedCall("all_reduce", 4, nbytes, "float32", plan.hash, "psum")
        found = choice.choose(call) if hosts is None else choice.choose_messages(call, hosts)
        both = choice.with_others(found, call, hosts, tries)
        if both.rule is None:
            assert both == found
            return None
        assert both.rule == choice.Rule(1, choice.NEVER, True) and both.schedules[1] == found.schedules[0]
        return both.schedules[0]

    assert default(4 * MIB, None) == "all_reduce/4"
    assert default(MIB, None) is None, "both are direct"
    assert default(4 * MIB, (0, 0, 0, 0)) == "all_reduce/direct/4"
    assert default(4 * MIB, (0, 1, 2, 3)) is None, "both are rings"
    assert default(2 * MIB, (0, 1, 2, 3)) == "all_reduce/ring/4"
    assert default(4 * MIB, None, tries=False) is None


def test_calls_between_three_hosts_have_schedules_for_lost_rails() -> None:
    lacking = {"hosts": [0, 1, 2, 3], "nic": "rank", "slow": 1.0, "nics": [2.0, 1.0, 1.0, 1.0]}
    one = {"schedule": {"kind": "hierarchical", "chunks": 8}, "seconds": 1.0, "otherwise": 2.0}
    ranges = [{**one, "min_bytes": MIB, "max_bytes": None, "reference_bytes": MIB}]
    document = make((0, None, SPECS["ring"]), ranks=4).model_dump(exclude={"hash"})
    lost_rails = [{"rank": 0, "rail": rail, "topology": lacking, "ranges": ranges} for rail in ("eth0", "eth1")]
    plan = validate({**document, "lost_rails": lost_rails}, "plan.json")
    PLANS[plan.hash] = plan

    def chosen(nbytes: int, hosts: tuple[int, ...], tries: bool = True) -> choice.Choice:
        call = SizedCall("all_reduce", 4, nbytes, "float32", plan.hash, "psum")
        return choice.with_others(choice.choose_messages(call, hosts), call, hosts, tries)

    rails = ((0, "eth0"), (0, "eth1"))
    large, small = chosen(16 * MIB, (0, 1, 2, 3)), chosen(2 * MIB, (0, 1, 2, 3))
    assert large.rule == choice.Rule(choice.NO_RANK, 0.0, False, rails) and len(large.schedules) == 3
    assert large.schedules[1] == large.schedules[2] != large.schedules[0], "like rails have the same schedule"
    assert chosen(16 * MIB, (0, 1, 2, 3), tries=False) == large
    assert small.rule in (large.rule, choice.Rule(1, choice.NEVER, True, rails))
    assert chosen(MIB - 4, (0, 1, 2, 3)).rule in (None, choice.Rule(1, choice.NEVER, True))
    assert chosen(16 * MIB, (0, 0, 1, 1)).rule in (None, choice.Rule(1, choice.NEVER, True)), "two hosts"


@pytest.mark.parametrize("compiled", [choice._compiled, choice._compiled_messages])
def test_plans_of_many_schedules_are_compiled_once(
    compiled: Callable[[schedules.Schedule], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [schedules.late_join(3, 0, chunks) for chunks in range(1, 301)]
    names = [compiled(schedule) for schedule in many]
    assert len(set(names)) == len(many)
    monkeypatch.delattr(choice, "compile")
    monkeypatch.delattr(choice, "compile_messages")
    assert [compiled(schedule) for schedule in many] == names
