"""The rails of a process, those that lead to another one, and the share of each."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from jaxcomm.cli import main
from jaxcomm.distributed.connect.addresses import listening_socket
from jaxcomm.distributed.connect.interfaces import Interface, interfaces
from jaxcomm.distributed.connect.membership import Membership
from jaxcomm.distributed.connect.records import Record, signed
from jaxcomm.distributed.connect.settings import Settings
from jaxcomm.distributed.rails import rail_ends
from jaxcomm.distributed.rails.named_rails import MOST_RAILS, NamedRail
from jaxcomm.distributed.rails.planned_rails import shares_of
from jaxcomm.distributed.rails.rail_ends import RailEnd
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.shares import UNITS, PlanRail, PlanRails, SharesFrom, in_units
from tests.cli import documents

COORDINATOR = "127.0.0.1:1"


def interface(name: str, address: str = "127.0.0.1", mbit: int = 1000, **other: object) -> Interface:
    return Interface(name, address, f"{address.rsplit('.', 1)[0]}.0/24", mbit, "up", True)._replace(**other)  # type: ignore[arg-type]


def rail(name: str, rate: int = 0, address: str = "10.0.0.1", network: str = "") -> RailEnd:
    return RailEnd(name, name, address, 1, rate, network)


def test_named_rails_are_interfaces_or_addresses() -> None:
    chosen = Settings(rails=(NamedRail("eth1", 3), NamedRail("eth0"), NamedRail("127.0.0.9", 1)))
    there = [interface("eth0", mbit=25_000), interface("eth1", "10.1.0.7"), interface("eth2", "10.2.0.7")]
    assert rail_ends.own_rails(chosen, COORDINATOR, there) == [
        RailEnd("eth1", "eth1", "10.1.0.7", 0, 3, ""),
        RailEnd("eth0", "eth0", "127.0.0.1", 0, 25_000, ""),
        RailEnd("127.0.0.9", "", "127.0.0.9", 0, 1, ""),
    ]
    with pytest.raises(JaxcommError, match="the rail 'ib0' is no interface with an IP address; this machine has: eth0"):
        rail_ends.own_rails(Settings(rails=(NamedRail("ib0"),)), COORDINATOR, there[:2])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["192.0.2.99"], "the rail '192.0.2.99' is no address of this machine; its interfaces are: lo0 127.0.0.1."),
        (["0.0.0.0"], "the rail '0.0.0.0' is no machine's address."),
        (["224.0.0.1"], "the rail '224.0.0.1' is no machine's address."),
        (["lo0", "127.0.0.1"], "the rails 'lo0' and '127.0.0.1' are the same interface, at 127.0.0.1."),
    ],
)
def test_named_rails_that_lead_nowhere_are_refused(names: list[str], message: str) -> None:
    chosen = Settings(rails=tuple(map(NamedRail, names)))
    with pytest.raises(JaxcommError) as found:
        rail_ends.own_rails(chosen, COORDINATOR, [interface("lo0")])
    assert str(found.value).startswith(f"{message}\n  Cure: name")


def test_a_record_that_others_would_not_read_is_not_published() -> None:
    ends = tuple(rail("e" * 15, 10**9, "255.255.255.255") for _ in range(MOST_RAILS))
    assert len(signed(Record(0, "tcp", False, "host", 1, -1, 0, ends), b"key")) < 4096
    with pytest.raises(JaxcommError, match=r"^the record of process 3 has 9\d\d\d bytes; 8192 is the most\.\n  Cure: "):
        signed(Record(3, "tcp", False, 9000 * "x", 1, -1, 0, ()), b"key")


def test_an_address_that_goes_before_it_is_bound_is_named() -> None:
    with pytest.raises(
        JaxcommError, match=r"cannot listen at 192\.0\.2\.99: Cannot assign requested address\.\n  Cure: "
    ):
        listening_socket("192.0.2.99", "")


@pytest.mark.parametrize("coordinator", ["", "here", "a..b:1", "127.0.0.1:http"])
def test_a_coordinator_without_host_or_port_is_named(coordinator: str) -> None:
    with pytest.raises(JaxcommError, match=f"reaches the coordinator '{coordinator}': it is no host and port"):
        rail_ends.own_rails(Settings(), coordinator, [])


def test_an_interface_may_have_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.if_nameindex", lambda: [(1, "a\udcff"), (2, "\u00e9\u00e9")])
    assert interfaces() == []  # there is none of these


def test_no_more_rails_are_found_than_may_be_named() -> None:
    found = [interface(f"eth{i}", f"127.0.{i}.1") for i in range(40)]
    assert len(rail_ends.own_rails(Settings(), "127.0.0.1:1", found)) == MOST_RAILS


def test_without_names_it_is_the_way_to_the_coordinator_and_devices_like_it() -> None:
    way, other = interface("eth0"), interface("eth1", "10.1.0.7", 4000)
    first = RailEnd(rail_ends.DEFAULT, "", "127.0.0.1", 0, 1000, "")
    found = [way, other, interface("docker0", is_physical=False), interface("eth2", state="down")]
    assert rail_ends.own_rails(Settings(), COORDINATOR, found) == [
        first,
        RailEnd("eth1", "eth1", "10.1.0.7", 0, 4000, "10.1.0.0/24"),
    ]
    one_rail = [[], [way], [other], [way, other._replace(mbit=0)], [way._replace(mbit=0), other]]
    assert [len(rail_ends.own_rails(Settings(), COORDINATOR, each)) for each in one_rail] == [1] * 5


def test_found_rails_are_common_where_they_lead_to_the_same_network() -> None:
    own = [rail(""), rail("eth1", network="10.0.0.0/24"), rail("eth2", network="10.2.0.0/24"), rail("br0", network="x")]
    peer = [
        rail("br0", network="x"),
        rail("eth2", address="10.0.0.2", network="10.3.0.0/24"),
        rail("eth1", address="10.0.0.2", network="10.0.0.0/24"),
        rail(""),
    ]
    assert rail_ends.common(own, peer) == ["", "eth1"]
    assert rail_ends.names([own, [rail("eth9")], peer]) == ["", "eth1", "eth2", "br0", "eth9"]


def test_named_rails_are_common_even_if_an_interface_is_missing() -> None:
    missing = RailEnd("eth1", "eth1", "", 0, 0, "", is_up=False)
    fabric = missing._replace(name="fabric:verbs", kind="fabric")
    own, peer = [rail("eth0"), missing, fabric], [rail("eth0"), rail("eth1"), fabric._replace(address="10.0.0.1")]
    assert rail_ends.common(own, peer) == rail_ends.common(peer, own) == ["eth0", "eth1"]
    udp = [end._replace(kind="udp") if end.name == "eth1" else end for end in peer]
    assert rail_ends.differing([own, peer], "tcp") == {} and [*rail_ends.differing([own, udp], "tcp")] == ["eth1"]


def test_a_rail_that_is_down_counts_by_its_other_end_or_as_the_slowest() -> None:
    down = rail("a")._replace(is_up=False)
    known = [rail("b", 1000), rail("c", 100)]
    lead = ["a", "b", "c"]
    assert rail_ends.rates(lead, [down, *known], [rail("a", 4000), *known]) == {"a": 4000, "b": 1000, "c": 100}
    assert rail_ends.rates(lead, [down, *known], [down, *known]) == {"a": 100, "b": 1000, "c": 100}
    assert rail_ends.rates(["a"], [down], [down]) == {"a": 1}


@pytest.mark.parametrize(
    ("lead", "planned", "expected"),
    [
        (["a", "b"], [], [(0, {"a": 819, "b": 205})]),
        (["a", "c"], [], [(0, {"a": 512, "c": 512})]),  # the rate of one is unknown
        (["b"], [], [(0, {"b": 1024})]),
        (
            ["a", "b"],
            [(0, {"b": 1024}), (99, {"a": 512, "b": 512})],
            [(0, {"a": 0, "b": 1024}), (99, {"a": 512, "b": 512})],
        ),
        (["a", "b"], [(0, {"c": 1024})], [(0, {"a": 819, "b": 205})]),
        (["a", "b"], [(0, {"c": 1024}), (99, {"c": 512, "d": 512})], [(0, {"a": 819, "b": 205})]),
        (["a", "b"], [(0, {"a": 256, "b": 256, "c": 512})], [(0, {"a": 512, "b": 512})]),
    ],
)
def test_shares_are_planned_or_by_rate_or_even(
    lead: list[str], planned: list[tuple[int, Mapping[str, int]]], expected: list[tuple[int, Mapping[str, int]]]
) -> None:
    own, peer = [rail("a", 500), rail("b", 1000), rail("c")], [rail("c", 7), rail("b", 125), rail("a", 9000)]
    found = rail_ends.shares(lead, own, peer, [SharesFrom(*each) for each in planned])
    assert [tuple(each) for each in found] == expected
    assert found == rail_ends.shares(lead, peer, own, [SharesFrom(*each) for each in planned])


def test_the_command_shows_rails_and_where_their_shares_come_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXCOMM_RAILS", "127.0.0.1:4,127.0.0.2:1")
    assert main(["rails", "--json"]) == 0
    document = documents.document(capsys.readouterr().out)
    assert [(row["rail"], row["share"], row["peers"]) for row in document["rails"]] == [
        ("127.0.0.1", 819, []),
        ("127.0.0.2", 205, []),
    ]
    assert document["shares_from"] == "by the rates of JAXCOMM_RAILS" and document["of"] == 1024
    monkeypatch.setenv("JAXCOMM_RAILS", "127.0.0.1,127.0.0.2")
    assert main(["rails"]) == 0
    assert "50.0%" in (shown := capsys.readouterr().out)
    assert ": equal, as the kernel does not report the speed of 127.0.0.1, 127.0.0.2.\n\n" in shown


def test_in_a_job_the_command_shows_round_trips_and_the_rail_of_small_calls(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = (rail(rail_ends.DEFAULT, 500), rail("eth1", 125, "10.1.0.1"))
    alone, by_rate = {rail_ends.DEFAULT: 0, "eth1": UNITS}, {rail_ends.DEFAULT: 819, "eth1": 205}
    shares = {peer: [SharesFrom(0, alone), SharesFrom(10_000, by_rate)] for peer in (1, 2)}
    round_trips = {(1, rail_ends.DEFAULT): 1e-3, (2, rail_ends.DEFAULT): 2e-3, (2, "eth1"): 4e-5}
    member = Membership(
        generation=1,
        process=0,
        incarnations={0: 10, 1: 11, 2: 12},
        transports=("", "tcp", "tcp"),
        hosts=(0, 1, 2),
        host_names={0: "a", 1: "b", 2: "c"},
        strangers=0,
        core=None,  # type: ignore[arg-type]
        ends=ends,
        rails=(rail_ends.DEFAULT, "eth1"),
        kinds=("tcp", "tcp"),
        shares=shares,
        round_trips=round_trips,
        repair=None,
    )
    monkeypatch.setattr("jaxcomm.cli.rails.is_job", lambda: True)
    monkeypatch.setattr("jaxcomm.cli.common.job.use_devices", lambda devices: None)
    monkeypatch.setattr("jaxcomm.cli.common.job.barrier", lambda: None)
    monkeypatch.setattr("jaxcomm.cli.common.job.is_first", lambda: True)
    monkeypatch.setattr("jaxcomm.distributed.connect.members.connected", lambda **_: member)
    assert main(["rails", "--json"]) == 0
    document = documents.document(capsys.readouterr().out)
    assert [row["round_trip_s"] for row in document["rails"]] == [pytest.approx(1.5e-3), 4e-5]
    assert [each["min_bytes"] for each in document["ranges"]] == [0, 10_000]
    assert main(["rails"]) == 0
    shown = capsys.readouterr().out
    assert "1.5 ms" in shown and "40 µs" in shown
    assert "\nCalls of less than 9.766 KiB: eth1 alone, by its round trip.\n\n" in shown


def test_the_source_of_shares_is_in_words() -> None:
    found = [rail("a", 1), rail("b", 1)]
    assert rail_ends.source(found, is_planned=True, is_named=True) == "those of the plan"
    assert rail_ends.source(found, is_planned=False, is_named=True) == "by the rates of JAXCOMM_RAILS"
    assert rail_ends.source([], is_planned=True, is_named=False) == "none, as the processes share memory only"


PLANNED = PlanRails(
    (PlanRail("a", "tcp", 4e7), PlanRail("b", "tcp", 1e7)),
    (SharesFrom(0, {"a": 0, "b": 1024}), SharesFrom(99, {"a": 820, "b": 204})),
)


def ends(**rates: int) -> list[RailEnd]:
    return [rail(name, rate) for name, rate in rates.items()]


def test_a_plans_shares_hold_for_rails_of_its_names() -> None:
    assert shares_of(PLANNED, ["b", "a"], ends(b=0, a=0)) == PLANNED.shares
    assert shares_of(None, ["b", "a"], ends(b=0, a=0)) == ()


def test_a_job_of_one_rail_takes_any_plan() -> None:
    assert shares_of(PLANNED, ["c"], ends(c=1)) == shares_of(PLANNED, [], []) == ()


def test_rails_of_other_names_match_by_their_rates() -> None:
    expected = [(0, {"": 1024, "c": 0}), (99, {"": 204, "c": 820})]
    job = [*ends(c=1000), rail(rail_ends.DEFAULT, 400), rail("c", 600)]
    assert shares_of(PLANNED, ["", "c"], job) == expected
    assert shares_of(PLANNED, ["a", ""], [rail("a", 1), rail("", 4)])[0].shares == {"": 0, "a": 1024}


@pytest.mark.parametrize(
    ("job", "planned", "message"),
    [
        ({"c": 4, "d": 0}, PLANNED, "the plan's rails are a, b; this job's are c, d, and their rates do not say which"),
        ({"c": 4, "d": 4}, PLANNED, "this job's are c, d, and their rates do not say which is which."),
        ({"c": 4, "": 4}, PLANNED, "this job's are c, the route to the coordinator, and their rates do not say"),
        ({"a": 4, "b": 2, "c": 1}, PLANNED, "this job's are a, b, c, too few or too many to say which is which."),
        (
            {"a": 4, "c": 1},
            PLANNED._replace(rails=PLANNED.rails[:1]),
            "the plan's rails are a; this job's are a, c, too",
        ),
        (
            {"c": 4, "d": 1},
            PLANNED._replace(rails=(PLANNED.rails[0], PLANNED.rails[1]._replace(transport="rdma"))),
            "the plan's rails are a, b; this job's are c, d, and their rates do not say which is which.",
        ),
        (
            {"c": 4, "d": 1},
            PLANNED._replace(rails=(PLANNED.rails[0], PLANNED.rails[1]._replace(bytes_per_s=3.5e7))),
            "the plan's rails are a, b; this job's are c, d, and their rates do not say which is which.",
        ),
    ],
)
def test_a_plan_of_other_rails_is_refused(job: dict[str, int], planned: PlanRails, message: str) -> None:
    with pytest.raises(JaxcommError) as found:
        shares_of(planned, list(job), ends(**job))
    assert message in str(found.value)
    assert "\n  Cure: JAXCOMM_RAILS=a" in str(found.value) and "`jaxcomm profile`" in str(found.value)


def test_shares_sum_to_a_whole() -> None:
    for weights in ([1], [500, 125], [1, 1, 1], [0.1, 0.2, 0.7], [0, 5], [1e9, 1, 1e9]):
        units = in_units(weights)
        assert sum(units) == UNITS
        for unit, weight in zip(units, weights, strict=True):
            assert abs(unit - UNITS * weight / sum(weights)) < 1
