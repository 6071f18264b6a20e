"""A run's statistics as its user sees them: a table, scalars, a trace, and a profile to plan from."""

from __future__ import annotations

import itertools
import json
import types
import typing
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxcomm
from jaxcomm import planner, profile, records, schedules, simulate
from jaxcomm.cli import main
from jaxcomm.errors import ProfileError
from jaxcomm.profile import run_file
from jaxcomm.profile.cluster import Topology
from jaxcomm.report import trace
from jaxcomm.report.profile_summary import summary
from jaxcomm.statistics import Stats

Capture = pytest.CaptureFixture[str]
RANKS = 4


def site(name: str = "psum", nbytes: int = 4096, **fields: Any) -> dict[str, Any]:
    """A record of a sum among 4 ranks. In each of 10 calls, rank 2 is 20 ms late; the transfer then takes 1 ms."""
    rows = [[0.0, 1e-4 * (call % 3), 0.02, 2e-4] for call in range(10)]
    record = {"name": name, "axes": "data", "plan": "direct", "ranks": RANKS, "bytes": nbytes, "calls": 10, "failed": 1}
    record |= {"transfer_s": 0.01, "early_bytes_share": 0.25, "wait_s": [0.2, 0.2, 0.0, 0.2], "late": [0, 0, 10, 0]}
    return record | {"arrivals": rows, "work_s": [], "after_arrival_s": [1e-3] * 10} | fields


GROUPED = site("gossip", work_s=[[0.1] * RANKS] * 10)
NEVER = site("pmax", calls=0, failed=0, arrivals=[], after_arrival_s=[])
TAKING_TURNS = site("pmin", arrivals=[[0.01 * (rank == call % RANKS) for rank in range(RANKS)] for call in range(10)])


def test_stats_print_as_a_table_and_stay_a_list() -> None:
    stats = Stats([site(), GROUPED, NEVER, TAKING_TURNS])
    lines = str(stats).splitlines()
    assert lines[0].split()[:6] == ["site", "axes", "plan", "ranks", "bytes", "calls"]
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[2:-1]}
    assert rows == {
        "psum": "data direct 4 4 KiB 10 1 20 ms 1 ms rank 2: last in 10 of 10, by 19.8 ms",
        "gossip": "data direct 4 4 KiB 10 1 - 1 ms -",
        "pmin": "data direct 4 4 KiB 10 1 10 ms 1 ms nobody",
    }
    assert repr(stats) == str(stats)
    assert stats[0]["calls"] == 10 and [record["name"] for record in stats][:2] == ["psum", "gossip"]
    assert str(Stats([NEVER])) == str(Stats()) == "no call yet"


# The model of each record in a saved run, and the type of the record in `jaxcomm.stats()`.
RECORDS = {
    run_file.RunSite: records.SiteStats,
    run_file.SiteSpan: records.SpanStats,
    run_file.SiteTrial: records.TrialStats,
    run_file.RunRail: records.RailStats,
    run_file.RailSpan: records.RailSpanStats,
    run_file.RailChange: records.RailChangeStats,
    run_file.GoneProcess: records.GoneStats,
    run_file.Generation: records.GenerationStats,
    run_file.RunPlan: records.PlanStats,
    run_file.ScheduleFrom: records.ScheduleStats,
    run_file.SelectedSchedules: records.SelectorStats,
    run_file.PlannedRails: records.PlannedRailsStats,
    run_file.PlannedShares: records.SharesStats,
    run_file.RunEvent: records.EventStats,
}


def test_records_have_the_types_of_a_saved_run() -> None:
    def in_records(hint: Any) -> Any:
        """The type in a record of what a model's field holds."""
        of = [in_records(each) for each in typing.get_args(hint)]
        match typing.get_origin(hint) or hint:
            case run_file.ScheduleName:
                return dict[str, Any]
            case origin if origin is tuple:
                return list[of[0]]
            case origin if origin in (list, dict):
                return origin[*of]
            case origin if origin in (typing.Union, types.UnionType):
                return typing.Union[*of]
        return RECORDS.get(hint, hint)

    for model, record in RECORDS.items():
        saved = {name: in_records(typing.get_type_hints(model)[name]) for name in model.model_fields}
        there = typing.get_type_hints(record)
        assert there.keys() == saved.keys(), record
        for name, hint in there.items():  # a field may be None only in a file, because an older version wrote none
            missing = [] if model.model_fields[name].is_required() else [typing.Union[hint, None]]  # noqa: UP007
            assert saved[name] in (hint, *missing), (record, name)


def test_rails_are_a_table_of_their_own() -> None:
    rails = [
        {
            "process": 1,
            "host": 1,
            "rail": "eth0",
            "is_open": True,
            "has_left": False,
            "fences": 0,
            "bytes": 2**20,
            "shares": [[0, 1024], [2**20, 768]],
        },
        {
            "process": 1,
            "host": 1,
            "rail": "eth1",
            "is_open": False,
            "has_left": False,
            "fences": 3,
            "bytes": 0,
            "shares": [[0, 0], [2**20, 256]],
        },
    ]
    stats = Stats([site()], rails)
    assert [line.split() for line in str(stats).splitlines()[-2:]] == [
        ["1", "eth0", "open", "0", "75.0%", "1", "MiB"],
        ["1", "eth1", "fenced", "3", "25.0%", "0", "B"],
    ]
    assert json.loads(stats.json())["rails"] == rails


def test_processes_that_are_gone_have_a_line_each() -> None:
    died = {"process": 3, "at_s": 12.34, "has_left": False, "why": "process 3 has been cut off: garbage.\n  Cure: none"}
    left = {"process": 1, "at_s": 70.0, "has_left": True, "why": "process 1 has left"}
    stats = Stats([site()], gone=[left, died])
    assert str(stats).splitlines()[-3:] == [
        "",
        "after 70.0 s: process 1 has left",
        "after 12.3 s: process 3 has been cut off: garbage.",
    ]
    assert [each.model_dump() for each in run_file.decode(stats.json().encode(), "run.json").gone] == [left, died]


def test_a_trace_has_a_track_per_rank_with_its_waits_and_transfers(tmp_path: Path) -> None:
    Stats([site(), NEVER]).trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} == {
        f"rank {rank}" for rank in range(RANKS)
    }
    slices = [event for event in events if event["ph"] == "X"]
    waits = [event for event in slices if event["name"] == "wait"]
    assert {event["tid"] for event in waits} == {0, 1, 3}, "the last rank waits for nobody"
    assert len(slices) == 10 * (RANKS + 3)
    for rank in range(RANKS):
        own = sorted((event["ts"], event["ts"] + event["dur"]) for event in slices if event["tid"] == rank)
        assert all(end <= start + 1e-2 for (_, end), (start, _) in itertools.pairwise(own))
    assert own[-1][1] == pytest.approx(10 * 21e3)


@pytest.mark.parametrize("topology", [None, Topology(hosts=(0, 0, 0, 1, 1, 1), nic="rank", slow=4.0)])
@pytest.mark.parametrize("schedule", [schedules.straggler(6, 2, 10), schedules.ring(6), schedules.direct(6)])
def test_a_schedules_trace_has_its_rounds_and_takes_its_predicted_time(
    schedule: schedules.Schedule, topology: Topology | None
) -> None:
    nbytes, alpha, beta = 2**20, 1e-5, 1e-9
    events = json.loads(trace.of_schedule(schedule, nbytes, alpha, beta, topology))["traceEvents"]
    received = [event for event in events if event["ph"] == "X" and event["name"] != "absent"]
    assert len(received) == sum(
        len({(each.round, each.dst) for each in phase.transfers()}) for phase in schedule.phases
    )
    seconds = sum(simulate.phase_seconds(schedule, nbytes, alpha, beta, topology))
    assert max(event["ts"] + event["dur"] for event in received) == pytest.approx(1e6 * seconds, abs=1e-2)
    assert {event["tid"] for event in events if event["name"] == "absent"} == set(schedule.late_ranks)


def test_explain_writes_the_rounds_as_a_trace(tmp_path: Path, capsys: Capture) -> None:
    jaxcomm.plan.save(planner.plan(profile.from_stats([site(), site(nbytes=2**24)])), tmp_path / "plan.json")
    words = ["--trace", str(tmp_path / "rounds.json"), "--size", "16MiB"]
    assert main(["explain", str(tmp_path / "plan.json"), *words]) == 0
    assert "Trace: " in capsys.readouterr().out
    names = [
        event["args"].get("name", "") for event in json.loads((tmp_path / "rounds.json").read_text())["traceEvents"]
    ]
    assert "16 MiB, predicted" in names[0]


def test_a_profile_of_the_sites_of_a_run() -> None:
    twice = site(nbytes=2**20, after_arrival_s=[5e-3] * 10, plan="auto")  # the run has not made a plan yet
    planned = site(nbytes=2**21, plan="3f9a01c2")
    found = profile.from_stats([site(), twice, planned, GROUPED, NEVER, site("all_gather", 2**30)])
    assert (found.ranks, found.warmup_dropped, len(found.arrivals)) == (RANKS, 1, 9)
    assert found.collective == profile.Collective(bytes=2**21, seconds=1e-3)
    assert [sample.bytes for sample in found.link.samples] == [4096, 2**20], "sums under a plan say nothing of α and β"
    assert found.link.residual < 1e-6
    late = profile.find_straggler(found)
    assert (late.rank, late.is_late) == (2, True)
    named = profile.from_stats([site(), site("psum bucket 1", 64)], site="psum bucket 1")
    assert named.collective is not None and named.collective.bytes == 64
    assert "psum bucket 1 over data, 64 bytes, direct" in named.provenance.source


REFUSED = {
    "nothing": ([NEVER, GROUPED], None, "holds no sum that was called twice"),
    "another name": ([site()], "pmean", "holds no sum 'pmean'; it holds psum"),
    "planned only": ([site(plan="3f9a01c2")], None, "no sum among 4 ranks ran without a plan"),
    "a value": ([site(calls=-1)], None, r"sites\[0\].calls is -1"),
    "a field": ([{**site(), "more": 1}], None, r"sites\[0\].more is not a field of a version 1 stats"),
}


@pytest.mark.parametrize(("sites", "name", "message"), REFUSED.values(), ids=REFUSED)
def test_statistics_that_make_no_profile_are_refused(
    sites: list[dict[str, Any]], name: str | None, message: str
) -> None:
    with pytest.raises(ProfileError, match=rf"^jaxcomm.stats\(\): {message}.*\n  Cure: "):
        profile.from_stats(sites, site=name)


def test_a_saved_run_is_profiled_at_the_command_line(tmp_path: Path, capsys: Capture) -> None:
    file, out = tmp_path / "run.json", tmp_path / "profile.json"
    Stats([site(), site(nbytes=2**20)]).save(file)
    assert main(["profile", "import", str(file), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "rank 2, last in 9 of 9 steps" in shown
    missing = "hosts, rails, NICs, incast, times of other schedules"
    assert f"{missing}: `jaxcomm profile` in a job of the same processes" in shown
    assert profile.load(out).arrivals == profile.from_stats(file).arrivals == profile.read_any(file).arrivals
    assert main(["profile", "import", str(file), "--out", str(tmp_path / "none.json"), "--dry-run"]) == 0
    assert not (tmp_path / "none.json").exists()
    file.write_text("{")
    assert main(["profile", "import", str(file)]) == 1
    assert str(file) in capsys.readouterr().err


def rails_to(hosts: dict[int, int], shares: dict[str, int], closed: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    """The records of rails to processes on these hosts. The last rail to each process in `closed` is fenced."""
    last = [*shares][-1]
    return [
        {"process": process, "host": host, "rail": rail, "is_open": rail != last or process not in closed}
        | {"has_left": False, "fences": 0, "bytes": 1, "shares": [[0, 1024], [2**20, share]]}
        for process, host in hosts.items()
        for rail, share in shares.items()
    ]


def run_on_rails(rails: list[dict[str, Any]]) -> Stats:
    return Stats([site(nbytes=size, after_arrival_s=[1e-3 + 1e-8 * size] * 10) for size in (4096, 2**24)], rails)


APART = {1: 1, 2: 2, 3: 3}


@pytest.mark.parametrize(
    ("rails", "shares", "hosts", "missing"),
    [
        (rails_to(APART, {"eth0": 768, "eth1": 256}), {"eth0": 0.75, "eth1": 0.25}, 4, "NICs"),
        (rails_to(APART, {"eth0": 512, "eth1": 512}, (3,)), {"eth0": 0.5, "eth1": 0.5}, 4, "NICs"),
        (rails_to(APART, {"eth0": 512, "eth1": 512}, (1, 2, 3)), {}, 4, "rails, NICs"),
        (rails_to({1: 1, 2: 1, 3: 3}, {"eth0": 512, "eth1": 512}), {"eth0": 0.5, "eth1": 0.5}, 0, "hosts, NICs"),
        (rails_to({2: 2, 3: 2}, {"eth0": 512, "eth1": 512}), {"eth0": 0.5, "eth1": 0.5}, 0, "hosts, NICs"),
        ([], {}, 0, "hosts, rails, NICs"),
    ],
)
def test_a_runs_profile_has_the_shares_of_its_rails(
    tmp_path: Path, rails: list[dict[str, Any]], shares: dict[str, float], hosts: int, missing: str
) -> None:
    run = run_on_rails(rails)
    run.save(tmp_path / "run.json")
    found = profile.from_stats(run)
    assert found.rail_shares == profile.read_any(tmp_path / "run.json").rail_shares == shares
    assert len({*found.hosts}) == hosts
    assert f"{missing}, incast, times of other schedules: `jaxcomm profile`" in summary(found)


def test_a_plan_of_a_run_on_rails_is_ready_for_hosts_that_lose_one() -> None:
    made = planner.plan(profile.from_stats(run_on_rails(rails_to(APART, {"eth0": 512, "eth1": 512}))))
    assert [(each.rank, each.rail) for each in made.lost_rails] == [
        (r, rail) for r in range(4) for rail in ("eth0", "eth1")
    ]
    alone = planner.plan(profile.from_stats(run_on_rails(rails_to({1: 1, 2: 1, 3: 3}, {"eth0": 512, "eth1": 512}))))
    assert alone.lost_rails == ()


def test_a_summary_names_slow_nics_and_only_what_is_missing() -> None:
    run = profile.from_stats([site(), site(nbytes=2**20)])
    slow = summary(run.model_copy(update={"nics": [1.0, 1.0, 2.5, 1.0]}))
    assert "rank 2 2.5 × slower" in slow and "hosts, rails, incast, times of other schedules:" in slow
    alike = summary(run.model_copy(update={"incast": 1.0}))
    assert "NICs          alike" in alike and "hosts, rails, times of other schedules:" in alike


def test_a_run_of_this_process_is_recorded_and_profiled(tmp_path: Path) -> None:
    mesh, spec = jax.sharding.Mesh(np.array(jax.devices()[:RANKS]), ("data",)), jax.sharding.PartitionSpec("data")
    mapped = jax.shard_map(lambda x: jaxcomm.psum(x, "data"), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    total = jax.jit(mapped)
    jaxcomm.reset_stats()
    for elements in (RANKS * 1000, RANKS * 10**6):
        for _ in range(5):
            total(np.ones(elements, np.float32)).block_until_ready()
    stats = jaxcomm.stats()
    assert "who is late" in str(stats)
    stats.save(tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["sites"] == stats
    for called in (each for each in stats if each["calls"]):
        assert sum(span["calls"] for span in called["spans"]) == called["calls"] == 5
        assert all(0 < span["at_s"] <= stats.at_s and len(span["arrivals"]) == RANKS for span in called["spans"])
    found = profile.from_stats()
    assert (found.ranks, len(found.arrivals)) == (RANKS, 4)
    assert {sample.bytes for sample in found.link.samples} == {4000, 4 * 10**6}
    assert planner.plan(found).ranks == RANKS
