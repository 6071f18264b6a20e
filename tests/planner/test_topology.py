"""Schedules for hosts whose links differ: never worse than the usual one, proved, executable, carried by plans."""

from __future__ import annotations

import itertools
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from jaxcomm import cli, plan, planner, profile, schedules, simulate
from jaxcomm.cluster import Topology
from jaxcomm.errors import JaxcommError, PlanError
from jaxcomm.plan import files
from jaxcomm.plan.values import Transfers
from jaxcomm.planner.schedules.network_solver import Solution, makespan, solve
from jaxcomm.profile import Profile
from jaxcomm.program.program import Program, compile
from jaxcomm.program.verifier import verify_program, verify_schedule
from jaxcomm.report import explanation
from tests.program.program_interpreter import sums_in_any_order

LATE = 7


def network(*sizes: int, nic: str = "rank", slow: float = 2.0) -> Topology:
    hosts = [host for host, size in enumerate(sizes) for _ in range(size)]
    return Topology.model_validate({"hosts": hosts, "nic": nic, "slow": slow})


# Late rank, chunks, and the time that is known to be the least, or None. In 4 + 4 hosts the late rank's NIC hands in
# 4 chunks and the last one spreads to 4 ranks (4ρ + 2), or the other host's only NIC takes in 7 of them (7ρ + 2).
NETWORKS: dict[str, tuple[Topology, int, int, float | None]] = {
    "one host": (network(8, slow=1.0), LATE, 7, 9),
    "one host, more chunks": (network(4), 0, 9, 10),
    "NIC per rank": (network(4, 4, slow=2.0), LATE, 7, 10),
    "NIC per rank, slower": (network(4, 4, slow=4.0), LATE, 7, 18),
    "NIC per host": (network(4, 4, nic="host", slow=2.0), LATE, 7, 16),
    "NIC per host, slower": (network(4, 4, nic="host", slow=4.0), LATE, 7, 30),
    "late rank in the first host": (network(4, 4, nic="host", slow=4.0), 1, 7, 30),
    "no multiple of one": (network(4, 4, slow=2.3), LATE, 7, None),
    "unlike hosts": (network(5, 3, slow=3.0), 2, 7, None),
    "three hosts": (network(3, 2, 2, nic="host", slow=2.0), 3, 6, None),
    "late rank alone on its host": (network(5, 1, slow=2.0), 5, 5, None),
    "a rank per host": (network(1, 1, 1, 1, slow=2.0), 0, 3, None),
    "two ranks": (network(1, 1, slow=2.0), 1, 2, None),
    "one chunk": (network(4, 4, slow=2.0), LATE, 1, None),
}


def proved(name: str, **options: Any) -> Solution:
    topology, late, chunks, _ = NETWORKS[name]
    solution = solve(topology, late, chunks, **options)
    verify_schedule(solution.schedule)
    assert solution.makespan == simulated(solution.schedule, topology)
    assert solution.bound <= solution.makespan <= solution.rotational
    assert solution.rotational == simulated(schedules.straggler(len(topology.hosts), late, chunks), topology)
    return solution


def simulated(schedule: schedules.Schedule, topology: Topology) -> float:
    """When the last transfer ends, counted on its own: each waits for all before it that share a port or a value."""
    rows = schedule.table().tolist()
    jobs: list[tuple[int, int, list[tuple[int, int]]]] = []  # round, chunk, sender and receiver; two of an exchange
    for round_, src, dst, chunk, op in rows:
        if op == schedules.Op.REDUCE and [round_, dst, src, chunk, op] in rows:
            if src < dst:
                jobs.append((round_, chunk, [(src, dst), (dst, src)]))
        else:
            jobs.append((round_, chunk, [(src, dst)]))
    ends: list[float] = []
    for i, (round_, chunk, links) in enumerate(jobs):
        begin = 0.0
        for (earlier, chunk_, links_), end in zip(jobs[:i], ends, strict=True):
            for (src, dst), (src_, dst_) in itertools.product(links, links_):
                between = topology.hosts[src] != topology.hosts[dst]
                alike = between == (topology.hosts[src_] != topology.hosts[dst_])
                place = topology.hosts if between and topology.nic == "host" else range(schedule.ranks)
                shares_port = alike and (place[src] == place[src_] or place[dst] == place[dst_])
                needs = earlier < round_ and chunk == chunk_ and (dst_ in (src, dst) or src_ == dst)
                if shares_port or needs:
                    begin = max(begin, end)
        src, dst = links[0]
        ends.append(begin + (topology.slow if topology.hosts[src] != topology.hosts[dst] else 1.0))
    return max(ends)


@pytest.mark.parametrize("name", NETWORKS)
def test_no_worse_than_rotational_and_optimal_where_that_is_known(name: str) -> None:
    best = NETWORKS[name][-1]
    start = time.process_time()
    solution = proved(name)
    assert time.process_time() - start < 10
    if best is not None:
        assert (solution.status, solution.makespan, solution.bound, solution.gap) == ("OPTIMAL", best, best, 0.0)


@pytest.mark.parametrize(("name", "seconds", "most"), [("NIC per rank", 0.5, 9), ("NIC per rank, slower", 1.5, 12)])
def test_free_owners_are_faster(name: str, seconds: float, most: float) -> None:
    solution = proved(name, free_owners=True, time_limit=seconds)
    assert solution.makespan <= most
    assert solution.makespan < NETWORKS[name][-1]


def test_on_one_host_the_usual_schedule_stays() -> None:
    assert proved("one host").schedule == schedules.straggler(8, LATE, 7)


def test_without_time_the_usual_schedule_stays() -> None:
    solution = proved("three hosts", time_limit=0.0)
    assert solution.schedule.kind == "straggler"
    assert (solution.status, solution.makespan) == ("UNKNOWN", solution.rotational)


@pytest.mark.parametrize("seed", range(12))
def test_random_networks(seed: int) -> None:
    dice = random.Random(seed)
    hosts = [0]
    for _ in range(dice.randrange(1, 7)):
        hosts.append(dice.randrange(max(hosts) + 2))
    topology = Topology.model_validate(
        {"hosts": hosts, "nic": dice.choice(["rank", "host"]), "slow": 1 + dice.randrange(20) / 4}
    )
    late, chunks, free = dice.randrange(len(hosts)), dice.randrange(1, 8), dice.random() < 0.5
    solution = solve(topology, late, chunks, free_owners=free, time_limit=0.3)
    verify_schedule(solution.schedule)
    assert solution.bound <= solution.makespan == simulated(solution.schedule, topology) <= solution.rotational


@pytest.mark.parametrize("free_owners", [False, True])
def test_equal_input_gives_equal_schedules(free_owners: bool) -> None:
    options: dict[str, Any] = {"free_owners": free_owners, "time_limit": 0.3}
    first, second = (proved("NIC per rank, slower", **options) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", NETWORKS)
def test_programs_sum_every_element_in_every_order(name: str) -> None:
    for free_owners in (False, True):
        schedule = proved(name, free_owners=free_owners, time_limit=0.2).schedule
        data = compile(schedule)
        verify_program(data, schedule)
        assert sums_in_any_order(Program.decode(data), 37)


@pytest.mark.parametrize("schedule", [schedules.ring(8), schedules.halving_doubling(8), schedules.straggler(8, 3, 20)])
def test_where_links_are_alike_the_volume_is_the_usual_one(schedule: schedules.Schedule) -> None:
    assert makespan(schedule, network(8)) == schedule.volume
    assert makespan(schedule, network(4, 4, slow=3.0)) == simulated(schedule, network(4, 4, slow=3.0)) > schedule.volume


def measured(topology: Topology | None = None, delay: float = 0.01, **fields: Any) -> Profile:
    return Profile.model_validate(
        {
            "ranks": 8,
            "link": {"alpha_s": 3e-6, "beta_s_per_byte": 1e-11, "source": "made up"},
            "arrivals": [[0.0] * 7 + [delay]] * 20,
            "topology": topology.model_dump() if topology else None,
            "provenance": {"source": "test", "tool": "hand"},
            **fields,
        }
    )


SHARED = network(4, 4, nic="host", slow=4.0)


@pytest.fixture(scope="module")
def planned() -> plan.Plan:
    return planner.plan(measured(SHARED), time_limit=1.0)


def test_a_plan_carries_the_schedule(planned: plan.Plan, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    plan.save(planned, file)
    loaded = plan.load(file)
    assert loaded == planned
    assert loaded.schedules == planned.schedules
    plan.verify(loaded)
    assert len(file.read_bytes()) < 64 * 1024
    chosen = loaded.schedule_for(8 * 2**20)
    assert chosen is not None and chosen.kind == "transfers" and chosen.late == LATE
    assert planner.plan(measured(SHARED), time_limit=1.0).canonical_bytes() == loaded.canonical_bytes()


def test_no_choice_is_slower_than_what_else_was_on_offer(planned: plan.Plan) -> None:
    for nic, delay in itertools.product(["rank", "host"], [0.01, 1e-4]):
        made = planner.plan(measured(network(4, 4, nic=nic, slow=4.0), delay), time_limit=0.2)
        for entry in made.collectives:
            offers = [offer.seconds for offer in entry.alternatives if offer.verdict != "ideal_delay"]
            assert entry.predicted.seconds * (1 - made.assumptions.min_gain) <= min(offers)
            assert entry.predicted.lower_bound <= entry.predicted.seconds


def test_buckets_may_run_it() -> None:
    buckets = [{"name": "all", "bytes": 2**23, "ready_s": 0.0}]
    made = planner.plan(measured(network(4, 4, nic="host", slow=4.0), buckets=buckets), time_limit=1.0)
    chosen = made.schedule_for(2**23)
    assert chosen is not None and chosen.kind == "transfers"
    assert made.step is not None and made.step.seconds < made.step.plain_seconds


def test_without_a_topology_nothing_changes() -> None:
    made = planner.plan(measured())
    assert made.network is None and b"network" not in made.canonical_bytes()
    assert b"topology" not in measured().canonical_bytes()
    assert b"topology" in measured(network(4, 4)).canonical_bytes()


def test_predictions_are_those_of_the_network(planned: plan.Plan) -> None:
    assert planned.network is not None
    source = measured(planned.network.topology)
    for entry, schedule in zip(planned.collectives, planned.schedules, strict=True):
        call = schedule, entry.predicted.reference_bytes, source.link.alpha_s, source.link.beta_s_per_byte
        seconds = simulate.mean_seconds(*call, source.topology, (LATE,), source.arrivals)
        assert seconds == pytest.approx(entry.predicted.seconds, rel=1e-6)


def test_explain_names_network_and_gap(planned: plan.Plan) -> None:
    text = " ".join(explanation.explanation(planned).split())
    assert "Hosts of 4 + 4 ranks with a NIC per host; a byte between hosts takes 4 times as long" in text
    assert (
        "takes 80. No schedule with these owners of chunks, in which a chunk enters a host once, takes less than 30 (by"
        in text
    )
    assert "why solved schedule" in text
    assert "the solved schedules are for this one" in text


def changed(made: plan.Plan, **solved: Any) -> dict[str, Any]:
    """The document of a plan whose schedules have other values, with a hash that fits."""
    document = json.loads(made.model_dump_json(exclude={"hash"}))
    for schedule in document["network"]["schedules"]:
        schedule.update(solved)
    return document


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"late": 3}, r"roles.straggler is 7, but network.schedules\[\d\].* was solved for late rank 3"),
        ({"owners": [0] * 6}, r"chunks is 7; network.schedules\[\d\] has 6"),
        ({"owners": [7] * 7}, r"network.schedules\[\d\]: owners\[0\] is 7, the late rank"),
        ({"moves": [0, 7, 0]}, "moves has 3 numbers"),
        ({"moves": [0, 7, 8, 0]}, r"moves\[2\] is 8; it must be in \[0, 7\]"),
        ({"moves": [9, 7, 0, 0]}, r"moves\[0\] is 9; it must be in \[0, 3\]"),
        ({"moves": [-1, 7, 0, 0]}, r"moves\[0\] is -1; it must be greater than or equal to 0"),
    ],
)
def test_values_that_cannot_be_are_named(planned: plan.Plan, values: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        files.validate(changed(planned, **values), "plan.json")


def test_a_schedule_that_does_not_give_the_sum_is_refused_when_loaded(planned: plan.Plan, tmp_path: Path) -> None:
    assert planned.network is not None
    for cut in (4, 40):
        moves = planned.network.schedules[0].moves[:-cut]
        wrong = files.validate(changed(planned, moves=moves, owners=planned.network.schedules[0].owners), "plan")
        plan.save(wrong, tmp_path / "plan.json")
        with pytest.raises(
            PlanError, match=r"plan.json: network.schedules\[\d\]: transfers: .* lacks the contribution"
        ):
            plan.load(tmp_path / "plan.json")


def test_an_index_without_a_schedule_is_named(planned: plan.Plan) -> None:
    document = changed(planned)
    document["network"]["schedules"] = []
    with pytest.raises(PlanError, match=r"index is \d; network has 0 schedules"):
        files.validate(document, "plan.json")


def test_the_late_rank_is_bound(planned: plan.Plan, tmp_path: Path) -> None:
    assert any(isinstance(entry.schedule, Transfers) for entry in planned.collectives)
    plan.save(planned, tmp_path / "plan.json")
    with pytest.raises(PlanError, match="plan again, from a profile in which rank 2"):
        plan.load(tmp_path / "plan.json", roles={"straggler": 2})


def test_more_ranks_than_the_solver_takes_are_refused_by_it_and_planned_without() -> None:
    with pytest.raises(JaxcommError, match="Cure: ask for fewer chunks, or for fewer ranks"):
        solve(network(32, 32), 63, 63)
    made = planner.plan(measured(network(32, 32), ranks=64, arrivals=[]))
    assert made.network is not None and made.network.schedules == ()


def test_the_command_line_sets_a_topology(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "profile.json", tmp_path / "plan.json"
    profile.save(measured(), source)
    words = ["plan", str(source), "--out", str(out), "--nic", "host", "--slow", "2", "--time-limit", "0.5"]
    assert cli.main([*words, "--hosts", "4+4"]) == 0
    loaded = plan.load(out)
    assert loaded.network is not None and loaded.network.topology == network(4, 4, nic="host", slow=2.0)
    assert loaded.network.schedules[0].makespan == 16
    assert cli.main(["explain", str(out), "--svg", str(tmp_path / "plan.svg")]) == 0
    assert cli.main(["verify", str(out), "--programs"]) == 0
    assert cli.main([*words, "--hosts", "4+3"]) == 1
    assert "--hosts 4+3 names 7 ranks, but" in capsys.readouterr().err
    assert cli.main([*words, "--hosts", "4+x"]) == 2
    assert "write for example 4+4" in capsys.readouterr().err
