"""Plans for hosts whose links differ: a plan holds the schedules solved for them, and loading proves these."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from jaxcomm import cli, plan, planner, profile, simulate
from jaxcomm.errors import PlanError
from jaxcomm.plan import files
from jaxcomm.plan.solved import SolvedCall
from jaxcomm.plan.values import Transfers
from jaxcomm.profile import Profile
from jaxcomm.profile.cluster import Topology
from jaxcomm.report.plan import explanation

LATE = 7


def network(*sizes: int, nic: str = "rank", slow: float = 2.0) -> Topology:
    hosts = [host for host, size in enumerate(sizes) for _ in range(size)]
    return Topology.model_validate({"hosts": hosts, "nic": nic, "slow": slow})


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


@pytest.mark.slow
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


@pytest.mark.slow
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
    assert made.network is None
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
    assert "and a delay of 10 ms: " in text
    assert "chunks, each by itself, takes less than " in text
    assert "why solved schedule" in text
    assert "the solved schedules are for this one" in text


def changed(made: plan.Plan, **solved: Any) -> dict[str, Any]:
    """The document of a plan without its hash, in which all solved schedules have the values `solved`."""
    document = json.loads(made.model_dump_json(exclude={"hash"}))
    for schedule in document["network"]["schedules"]:
        schedule.update(solved)
    return document


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"late": 3}, r"roles.straggler is 7, but network.schedules\[\d\].* was solved for late rank 3"),
        ({"chunks": 9}, r"chunks is \d+; network.schedules\[\d\] has 9"),
        ({"before": [0, 7, 0, 0, 0]}, r"network.schedules\[\d\]: before\[1\] is 7, the late rank"),
        ({"after": [0, 7, 0]}, "after has 3 numbers; every transfer has 5: round, sender, receiver, chunk, op"),
        ({"after": [0, 7, 8, 0, 0]}, r"after\[2\] is 8; it must be in \[0, 7\]"),
        ({"after": [9, 7, 0, 0, 0]}, r"after\[0\] is 9; it must be in \[0, 4\]"),
        ({"after": [0, 7, 0, 0, 2]}, r"after\[4\] is 2; it must be in \[0, 1\]"),
        ({"after": [-1, 7, 0, 0, 0]}, r"after\[0\] is -1; it must be greater than or equal to 0"),
    ],
)
def test_values_that_cannot_be_are_named(planned: plan.Plan, values: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        files.validate(changed(planned, **values), "plan.json")


def test_a_schedule_that_does_not_give_the_sum_is_refused_when_loaded(planned: plan.Plan, tmp_path: Path) -> None:
    assert planned.network is not None
    for cut in (5, 50):
        wrong = changed(planned)
        for schedule, known in zip(wrong["network"]["schedules"], planned.network.schedules, strict=True):
            assert isinstance(known, SolvedCall)
            schedule["after"] = known.after[:-cut]
        plan.save(files.validate(wrong, "plan"), tmp_path / "plan.json")
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
    with pytest.raises(PlanError, match="plan again from a profile in which rank 2"):
        plan.load(tmp_path / "plan.json", roles={"straggler": 2})


def test_more_ranks_than_the_solver_takes_are_planned_without() -> None:
    made = planner.plan(measured(network(16, 16), ranks=32, arrivals=[[0.0] * 31 + [0.01]] * 20))
    assert made.network is not None and made.network.schedules == ()


@pytest.mark.slow
def test_the_command_line_sets_a_topology(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "profile.json", tmp_path / "plan.json"
    profile.save(measured(), source)
    words = ["plan", str(source), "--out", str(out), "--nic", "host", "--slow", "2", "--time-limit", "0.5"]
    assert cli.main([*words, "--hosts", "4+4"]) == 0
    loaded = plan.load(out)
    assert loaded.network is not None and loaded.network.topology == network(4, 4, nic="host", slow=2.0)
    assert any(isinstance(entry.schedule, Transfers) for entry in loaded.collectives)
    assert cli.main(["explain", str(out), "--svg", str(tmp_path / "plan.svg")]) == 0
    assert cli.main(["verify", str(out), "--programs"]) == 0
    assert cli.main([*words, "--hosts", "4+3"]) == 1
    assert "--hosts 4+3 names 7 ranks, but" in capsys.readouterr().err
    assert cli.main([*words, "--hosts", "4+x"]) == 2
    assert "write for example 4+4" in capsys.readouterr().err
