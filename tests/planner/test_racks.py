"""Racks without a topology: schedules are planned on the network that the racks form, at any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from jaxcomm import plan, planner, profile, schedules, simulate
from jaxcomm.cli import main
from jaxcomm.planner.schedules import network_search
from jaxcomm.profile import Profile
from jaxcomm.profile.cluster import Topology
from jaxcomm.report.plan.explanation import explanation
from jaxcomm.simulate import clock
from tests.cli import documents

Capture = pytest.CaptureFixture[str]


def cluster(*racks: list[int], uplinks: list[float] | None = None, late: float = 0.01, **fields: Any) -> Profile:
    ranks = sum(map(len, racks))
    document = {
        "format": "jaxcomm-profile",
        "version": 1,
        "ranks": ranks,
        "link": {"alpha_s": 3e-6, "beta_s_per_byte": 1e-11, "source": "made up"},
        "arrivals": [[0.0] * (ranks - 1) + [late]] * 4,
        "collective": {"bytes": 2**24, "seconds": 0.01},
        "racks": [
            {"name": f"rack {i}", "ranks": members, "uplink": uplink}
            for i, (members, uplink) in enumerate(zip(racks, uplinks or [4.0] * len(racks), strict=True))
        ],
        "provenance": {"source": "test", "tool": "hand"},
    }
    return profile.validate(document | fields, "test")


def even(ranks: int, racks: int, **fields: Any) -> Profile:
    each = ranks // racks
    return cluster(*(list(range(i * each, (i + 1) * each)) for i in range(racks)), **fields)


@pytest.mark.parametrize(
    ("given", "hosts", "slow"),
    [
        (cluster([0, 1], [2, 3]), (0, 0, 1, 1), 4.0),
        (cluster([2, 3], [0, 1]), (0, 0, 1, 1), 4.0),
        (cluster([3, 1], [0, 2], uplinks=[2.0, 3.0]), (0, 1, 0, 1), 3.0),
        (cluster([0], [1], [2, 3], uplinks=[1.0, 1.0, 1.5]), (0, 1, 2, 2), 1.5),
    ],
)
def test_racks_are_hosts_that_share_a_card_as_slow_as_the_slowest_uplink(
    given: Profile, hosts: tuple[int, ...], slow: float
) -> None:
    assert given.network == Topology(hosts=hosts, nic="host", slow=slow)
    assert given.topology is None


def test_racks_without_a_slow_uplink_are_no_network_and_a_topology_goes_first() -> None:
    assert cluster([0, 1, 2, 3]).network is None
    assert cluster([0, 1], [2, 3], uplinks=[1.0, 1.0]).network is None
    stated = Topology(hosts=(0, 0, 1, 1), nic="rank", slow=2.0)
    hosts_in_racks = stated.model_copy(update={"racks": (0, 1), "uplinks": (4.0, 4.0)})
    assert cluster([0, 1], [2, 3], topology=stated.model_dump()).network == hosts_in_racks


@pytest.mark.slow
def test_schedules_are_those_of_the_topology_that_the_racks_are() -> None:
    racks = even(8, 2)
    hosts = racks.model_copy(update={"racks": [], "topology": racks.network})
    ours, theirs = (planner.plan(given, time_limit=0.5) for given in (racks, hosts))
    assert (ours.network, ours.collectives, ours.step) == (theirs.network, theirs.collectives, theirs.step)
    assert ours.groups is not None and theirs.groups is None
    assert any(entry.schedule.kind == "transfers" for entry in ours.collectives)


def test_a_slower_uplink_makes_the_times_longer() -> None:
    fast, slow = (planner.plan(even(4, 2, uplinks=[uplink] * 2), time_limit=0.2) for uplink in (2.0, 8.0))
    for nbytes in (2**20, 2**30):
        times = [
            simulate.phases(made.schedule_for(nbytes), nbytes, 3e-6, 1e-11, made.network.topology)[1]
            for made in (fast, slow)
        ]
        assert times[0] < times[1]


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "racks"), [(17, 17), (24, 8), (512, 8)])
def test_more_ranks_than_are_solved_for_are_planned_and_explain_says_so(ranks: int, racks: int) -> None:
    made = planner.plan(even(ranks, racks))
    plan.verify(made)
    assert made.network is not None and made.network.schedules == ()
    assert made.groups is not None
    text = " ".join(explanation(made).split())
    assert f"No schedule was searched for on this network: it has {ranks} ranks; the search is for at most 16." in text
    for entry in made.collectives:
        schedule, nbytes = made.schedule_for(entry.min_bytes), entry.predicted.reference_bytes
        ring = simulate.phases(schedules.ring(ranks), nbytes, 3e-6, 1e-11, made.network.topology)[1]
        assert entry.predicted.ring == pytest.approx(ring)
        assert schedule is not None and entry.predicted.seconds <= ring * 1.02


@pytest.mark.slow
def test_explain_names_the_racks_and_what_is_approximated() -> None:
    made = planner.plan(even(8, 2, uplinks=[2.0, 4.0]), time_limit=0.5)
    text = " ".join(explanation(made).split())
    assert "Racks of 4 + 4 ranks, each with one uplink for all of its ranks; a byte between racks takes 4 times" in text
    assert "The uplinks differ; schedules count all of them as the slowest, groups each as it is." in text
    assert "NICs are unlike" not in text and "Hosts of" not in text
    unlike = planner.plan(even(8, 2, uplinks=[2.0, 4.0], nics=[1.0] * 7 + [2.0]), time_limit=0.5)
    text = " ".join(explanation(unlike).split())
    assert (
        "through those of some ranks a byte takes a multiple of the time: 2 (rank 7)." in text
        and "Hosts of" not in text
    )
    assert "racks, whose uplinks carry one message at a time in each direction; a byte through them takes 2, 4" in text
    alike = explanation(planner.plan(even(8, 2), time_limit=0.5))
    assert "The uplinks differ" not in alike and "NICs are unlike" not in alike


@pytest.mark.parametrize("schedule", [schedules.ring(12), schedules.direct(12), schedules.halving_doubling(12)])
@pytest.mark.parametrize("nic", ["rank", "host"])
def test_volume_of_many_ranks_is_that_of_the_busiest_ports(schedule: schedules.Schedule, nic: Any) -> None:
    hosts = tuple(rank // 4 for rank in range(12))
    network = Topology(hosts=hosts, nic=nic, slow=3.0, racks=(0, 0, 1), uplinks=(2.0, 5.0))
    rounds: dict[int, dict[tuple[str, int], float]] = {}
    for transfer in schedule.transfers():
        loads = rounds.setdefault(transfer.round, {})
        remote = hosts[transfer.src] != hosts[transfer.dst]
        ends = ("send", transfer.src), ("receive", transfer.dst)
        if remote:
            shared = hosts if nic == "host" else range(12)
            ends = ("NIC out", shared[transfer.src]), ("NIC in", shared[transfer.dst])
        for port in ends:
            loads[port] = loads.get(port, 0.0) + (network.slow if remote else 1.0)
        out, into = (network.racks[hosts[rank]] for rank in (transfer.src, transfer.dst))
        for way, rack in (("out", out), ("in", into)):
            if out != into:
                loads[way, rack] = loads.get((way, rack), 0.0) + 3.0 * network.uplinks[rack]
    assert clock._busiest(schedule, network) == sum(max(loads.values()) for loads in rounds.values())
    assert clock._busiest(schedule, Topology(hosts=(0,) * 12, nic=nic, slow=3.0)) == schedule.volume


@pytest.mark.parametrize("name", ["ring", "direct", "halving_doubling", "straggler"])
def test_the_busiest_ports_take_what_a_run_message_by_message_takes(name: str) -> None:
    schedule = schedules.straggler(32, 31, 31) if name == "straggler" else getattr(schedules, name)(32)
    network = Topology(hosts=tuple(rank // 4 for rank in range(32)), nic="host", slow=4.0)
    last = simulate.run(schedule, schedule.num_chunks, simulate.Network(0.0, 1.0, network)).phases[-1]
    assert clock._busiest(schedule.phases[-1], network) == pytest.approx(
        last.end_s.max() - last.start_s.min(), rel=0.05
    )


def rows(given: Profile, capsys: Capture, tmp_path: Path, *words: str) -> list[dict[str, Any]]:
    profile.save(given, tmp_path / "profile.json")
    assert main(["what-if", str(tmp_path / "profile.json"), "--sizes", "64MiB", "--json", *words]) == 0
    return documents.document(capsys.readouterr().out)["rows"]


@pytest.mark.slow
def test_what_if_an_uplink_is_slower(capsys: Capture, tmp_path: Path) -> None:
    [row] = rows(even(4, 2), capsys, tmp_path, "--uplink-rate", "rack 1=1/4")
    assert row["change"]["uplink_rates"] == {"rack 1": 0.25}
    assert row["difference_s"] > 0
    assert row["changed"]["groups_s"] > 3 * row["today"]["groups_s"]
    assert row["today"]["groups_period"] >= 1 and 0 <= row["today"]["rho"] < 1
    [again] = rows(even(4, 2, uplinks=[4.0, 16.0]), capsys, tmp_path, "--rate", "1")
    assert row["changed"] == again["today"]


@pytest.mark.slow
def test_what_if_a_card_is_slower_calls_and_groups_take_longer(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = Mock(side_effect=network_search.improve)
    monkeypatch.setattr(network_search, "improve", searches)
    [row] = rows(even(4, 2), capsys, tmp_path, "--nic-rate", "3=1/8")
    assert searches.call_count <= 2 * len(network_search.SIZES) * network_search.STARTS, "a network is searched twice"
    assert row["change"]["nic_rates"] == {"3": 0.125}
    assert row["difference_s"] > 0 and row["changed"]["groups_s"] > row["today"]["groups_s"]
    plain = even(4, 1)
    [row] = rows(plain, capsys, tmp_path, "--nic-rate", "3=1/8")
    assert row["today"]["groups_s"] is None and row["changed"]["groups_s"] > 0


@pytest.mark.slow
def test_what_if_prints_groups_for_the_model_s_bytes(capsys: Capture, tmp_path: Path) -> None:
    profile.save(even(4, 2, collective=None), tmp_path / "profile.json")
    words = ["what-if", str(tmp_path / "profile.json"), "--uplink-rate", "rack 0=1/2", "--sizes", "1MiB,64MiB"]
    for more, size in (([], "64 MiB"), (["--model-bytes", "3MiB"], "3 MiB")):
        assert main([*words, *more]) == 0
        text = capsys.readouterr().out
        assert f"for a model of {size}: averages within groups" in text
        section = text[text.index("Groups that take turns") :]
        assert section.count('the uplink of "rack 0" at 1/2 times its rate  ') == 1
        assert "rho in iterations" in section


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--uplink-rate", "rack 7=1/4"], 1, "has no rack 'rack 7'; its racks are: rack 0, rack 1"),
        (["--uplink-rate", "rack 0=8"], 1, "racks[0].uplink is 0.5; it must be greater than or equal to 1"),
        (["--uplink-rate", "rack 0"], 2, "'rack 0' is not a rack and its rate; write for example 'rack 0=1/4'"),
        (["--nic-rate", "8=1/4"], 1, "rank 8 cannot have another NIC: the ranks are 0 to 7"),
        (["--nic-rate", "1=2"], 1, "nics[1] is 0.5; it must be greater than or equal to 1"),
        (["--nic-rate", "one=1/4"], 2, "'one=1/4' is not a rank and its rate; write for example 3=1/4"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes(words: list[str], code: int, sentence: str, capsys: Capture, tmp_path: Path) -> None:
    profile.save(even(8, 2), tmp_path / "profile.json")
    assert main(["what-if", str(tmp_path / "profile.json"), *words]) == code
    captured = capsys.readouterr()
    assert sentence in captured.err and captured.out == ""


# An all-reduce could run as a reduce-scatter and an all-gather, one after the other.
@pytest.mark.parametrize(("ranks", "racks"), [(20, 4), (24, 3), (32, 8)])
def test_an_all_reduce_on_racks_is_never_behind_its_own_halves(ranks: int, racks: int) -> None:
    made = planner.plan(even(ranks, racks, uplinks=[3.0] * racks))
    assert made.network
    for nbytes in (2**14, 2**20, 2**24, 2**28):
        link = simulate.link_of(schedules.ring(ranks), nbytes, made.links)
        whole, scatter, gather = (
            simulate.phases(schedule, nbytes, *link)[1]
            for schedule in (
                made.schedule_for(nbytes),
                made.half_for("reduce_scatter", nbytes) or schedules.half("reduce_scatter", schedules.direct(ranks)),
                made.half_for("all_gather", nbytes) or schedules.half("all_gather", schedules.direct(ranks)),
            )
        )
        assert whole <= 1.02**2 * (scatter + gather)
