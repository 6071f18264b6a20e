"""Threads play the processes of a job: which are connected and how, and which is named if it is missing."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxcomm import ffi, jax_compat
from jaxcomm.distributed.connect import members, membership, records, secret, stages, udp_paths
from jaxcomm.distributed.connect.connecting import connect_as
from jaxcomm.distributed.connect.fabric_paths import FabricPath
from jaxcomm.distributed.connect.job_core import StepsRunning
from jaxcomm.distributed.connect.membership import Membership
from jaxcomm.distributed.connect.path_keys import CipherKeys
from jaxcomm.distributed.connect.records import Record
from jaxcomm.distributed.connect.settings import Settings
from jaxcomm.distributed.connect.udp_paths import UdpPath
from jaxcomm.distributed.rails import connections as rail_connections
from jaxcomm.distributed.rails import rail_ends
from jaxcomm.distributed.rails.named_rails import NamedRail, named_rails
from jaxcomm.distributed.rails.rail_ends import FabricEnd, RailEnd
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.shares import PlanRail, PlanRails, SharesFrom
from tests.distributed.stores import Store

TCP = Settings("tcp", timeout_s=20)
KEY = secret.key(bytes(32), "job", 1)


NUMBER = 2**64 - 1


class Core:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.file = os.memfd_create("jaxcomm")
        self.files: dict[int, int] = {}
        self.sockets: dict[int, socket.socket] = {}  # of the first rail
        self.others: dict[tuple[int, int], socket.socket] = {}
        self.paths: dict[tuple[int, int], UdpPath] = {}
        self.kinds: list[str] = []
        self.protocol, self.lacks_fabric = 7, False  # of fabrics
        self.rails: list[str] = []
        self.shares: dict[int, tuple[list[int], list[tuple[int, list[int]]]]] = {}
        self.hosts: list[int] = []  # once it has been started
        self.is_closed = False
        self.fabric_paths: dict[tuple[int, int], FabricPath] = {}
        self.down: dict[int, list[int]] = {}
        self.keys: dict[tuple[int, int], CipherKeys] = {}  # of encrypted TCP connections
        self.lacks_library, self.has_aes = False, True

    def shm_file(self) -> tuple[int, int]:
        return self.file, NUMBER

    def add_shm(self, process: int, fd: int, number: int) -> None:
        assert number == NUMBER
        self.files[process] = fd

    def open_fabric(self, rail: str, provider: str, domain: str) -> FabricEnd:
        if self.lacks_fabric:
            raise JaxcommError(f"libfabric has no provider {provider}")
        return FabricEnd(provider, domain, self.protocol, f"{id(self):016x}")

    def open_rails(self, rails: list[tuple[str, str]]) -> None:
        self.kinds, self.rails = [kind for kind, _ in rails], [name for _, name in rails]

    def set_shares(self, process: int, shares: list[tuple[int, list[int]]]) -> None:
        raise AssertionError("nothing is measured here")

    def set_rails(
        self, process: int, connected: list[int], down: list[int], shares: list[tuple[int, list[int]]]
    ) -> None:
        self.shares[process] = connected, shares
        self.down[process] = down

    def seals_by_aes(self) -> bool:
        return self.has_aes

    def check_encryption(self) -> None:
        if self.lacks_library:
            raise JaxcommError("messages cannot be encrypted: libcrypto.so.3 is missing.")

    def add_tcp(self, process: int, rail: int, fd: int, keys: CipherKeys | None) -> None:
        if keys is not None:
            self.keys[process, rail] = keys
        made = socket.socket(fileno=fd)
        if rail == 0:
            self.sockets[process] = made
        else:
            self.others[process, rail] = made

    def add_udp(self, process: int, rail: int, path: UdpPath) -> None:
        self.paths[process, rail] = path

    def add_fabric(self, process: int, rail: int, path: FabricPath) -> None:
        self.fabric_paths[process, rail] = path

    def lost_rails(self) -> list[tuple[int, int, int]]:
        return []

    def restore_tcp(self, process: int, rail: int, cuts: int, fd: int, keys: CipherKeys | None) -> None:
        raise AssertionError("no rail is lost")

    def restore_udp(self, process: int, rail: int, cuts: int, path: UdpPath) -> None:
        raise AssertionError("no rail is lost")

    def restore_fabric(self, process: int, rail: int, cuts: int, path: FabricPath) -> None:
        raise AssertionError("no rail is lost")

    def start(self, hosts: Sequence[int], host_names: Sequence[str], *, has_processor_each: bool) -> None:
        self.hosts, self.host_names = [*hosts], [*host_names]

    def close(self, *, for_change: bool = False) -> None:
        self.is_closed = True


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr(jax_compat, "key_value_store", lambda: made)
    return made


@pytest.fixture
def cores() -> Iterator[list[Core]]:
    made = [Core() for _ in range(6)]
    yield made
    for core in made:
        for connection in (*core.sockets.values(), *core.others.values()):
            connection.close()
        for path in core.paths.values():
            path.connection.close()
            path.close_sockets()
        for file in (core.file, *core.files.values()):
            os.close(file)


def connect_all(
    cores: list[Core],
    chosen: list[Settings | None],
    planned: PlanRails | None = None,
    live: Sequence[int] | None = None,
) -> list[Membership | JaxcommError]:
    """The outcome of each process; those with None do not come."""

    def one(process: int) -> Membership | JaxcommError:
        settings = chosen[process]
        if settings is None:
            return JaxcommError("has not come")
        try:
            return connect_as(process, len(chosen), cores[process], settings, "localhost:1", 7, planned, live)
        except JaxcommError as error:
            return error

    with ThreadPoolExecutor(len(chosen)) as pool:
        return [*pool.map(one, range(len(chosen)))]


def all_members(found: list[Membership | JaxcommError]) -> list[Membership]:
    for each in found:
        if isinstance(each, JaxcommError):
            raise each
    return [each for each in found if isinstance(each, Membership)]


def errors(found: list[Membership | JaxcommError]) -> list[str]:
    assert all(isinstance(each, JaxcommError) for each in found), found
    return [str(each) for each in found]


@pytest.mark.usefixtures("store")
def test_each_pair_has_one_connection(cores: list[Core]) -> None:
    found = all_members(connect_all(cores, [TCP] * 4))
    assert [each.transports for each in found] == [tuple("" if i == j else "tcp" for j in range(4)) for i in range(4)]
    assert [(each.process, each.generation, each.strangers) for each in found] == [(i, 7, 0) for i in range(4)]
    assert [core.hosts for core in cores[:4]] == [[0] * 4] * 4
    for i, core in enumerate(cores[:4]):
        assert sorted(core.sockets) == [j for j in range(4) if j != i]
        for j, connection in core.sockets.items():
            assert not os.get_blocking(connection.fileno())
            connection.sendall(bytes([i, j]))
    for i, core in enumerate(cores[:4]):
        for j, connection in core.sockets.items():
            connection.settimeout(10)
            assert connection.recv(100) == bytes([j, i])


@pytest.mark.usefixtures("store")
def test_each_pair_has_one_udp_path(cores: list[Core]) -> None:
    found = all_members(connect_all(cores, [Settings("udp", timeout_s=20)] * 4))
    assert found[1].transports == ("udp", "", "udp", "udp")
    for i, core in enumerate(cores[:4]):
        assert core.kinds == ["udp"] and not core.sockets
        assert sorted(core.paths) == [(j, 0) for j in range(4) if j != i]
        assert_paths_meet(cores, i)


def all_keys(core: Core) -> dict[tuple[int, int], Any]:
    """The keys of connections over TCP and of the first paths over UDP, by process and rail."""
    return {**core.keys, **{to: path.sockets[0] for to, path in core.paths.items()}}


@pytest.mark.usefixtures("store")
def test_each_encrypted_connection_has_its_own_keys(cores: list[Core]) -> None:
    rails = named_rails("rails", "127.0.0.1,udp:127.0.0.2")
    found = all_members(connect_all(cores, [Settings("tcp", timeout_s=20, rails=rails, encrypts=True)] * 3))
    seen = set()
    for i, core in enumerate(cores[:3]):
        assert sorted(core.keys) == [(j, 0) for j in range(3) if j != i]
        assert sorted(core.paths) == [(j, 1) for j in range(3) if j != i]
        assert {path.seals for path in core.paths.values()} == {"gcm"}
        for (other, rail), keys in all_keys(core).items():
            assert keys.sends == all_keys(cores[other])[i, rail].receives and len(keys.sends) == 28
            seen.add(keys.sends)
        assert found[i].kinds == ("tcp", "udp")
    assert len(seen) == 12
    for each in found:
        assert each.repair is not None
        each.repair.close()


@pytest.mark.usefixtures("store")
def test_packets_have_tags_that_both_processes_can_make(cores: list[Core]) -> None:
    cores[1].has_aes = False
    all_members(connect_all(cores, [Settings("udp", timeout_s=20)] * 3))
    seals = [{other: path.seals for (other, _), path in core.paths.items()} for core in cores[:3]]
    assert seals == [{1: "siphash", 2: "gmac"}, {0: "siphash", 2: "siphash"}, {0: "gmac", 1: "siphash"}]


@pytest.mark.usefixtures("store")
def test_without_encryption_no_connection_has_cipher_keys(cores: list[Core]) -> None:
    all_members(connect_all(cores, [TCP] * 2))
    assert sorted(cores[0].sockets) == [1] and not cores[0].keys


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("other", "text"),
    [
        (TCP._replace(encrypts=True), "JAXCOMM_ENCRYPT is off in process 0 and on in process 1."),
        (TCP._replace(udp_priorities=8), "JAXCOMM_UDP_PRIORITIES is 1 in process 0 and 8 in process 1."),
    ],
)
def test_settings_that_must_be_equal_are_named(cores: list[Core], other: Settings, text: str) -> None:
    found = errors(connect_all(cores, [TCP, other, TCP]))
    assert all(f"{text}\n  Cure: the same for all processes." in error for error in found), found


@pytest.mark.usefixtures("store")
def test_a_process_that_cannot_encrypt_is_named_by_all(cores: list[Core]) -> None:
    cores[1].lacks_library = True
    found = errors(connect_all(cores, [TCP._replace(encrypts=True)] * 3))
    assert all("messages cannot be encrypted: libcrypto.so.3 is missing." in error for error in found), found
    assert all("process 1" in found[other] for other in (0, 2))


@pytest.mark.usefixtures("store")
def test_an_encrypted_job_refuses_rails_over_fabrics(cores: list[Core]) -> None:
    rails = named_rails("rails", "127.0.0.1,fabric:verbs")
    found = errors(connect_all(cores, [Settings("tcp", timeout_s=20, rails=rails, encrypts=True)] * 2))
    assert all("JAXCOMM_ENCRYPT is on, but the rail fabric:verbs cannot encrypt messages." in each for each in found)


def assert_paths_meet(cores: list[Core], process: int) -> None:
    for (other, rail), path in cores[process].paths.items():
        there = cores[other].paths[process, rail]
        [near], [far] = path.sockets, there.sockets
        assert near.sends == far.receives and near.socket.getpeername() == far.socket.getsockname()
        assert path.connection.getpeername() == there.connection.getsockname()


@pytest.mark.usefixtures("store")
def test_each_rail_has_its_own_kind(cores: list[Core]) -> None:
    rails = (
        NamedRail("127.0.0.1"),
        NamedRail("127.0.0.2", kind="udp"),
        NamedRail("fabric:verbs/mlx5_0", kind="fabric"),
    )
    found = all_members(connect_all(cores, [Settings("tcp", timeout_s=20, rails=rails)] * 3))
    for i, (core, each) in enumerate(zip(cores[:3], found, strict=True)):
        others = [j for j in range(3) if j != i]
        assert each.kinds == ("tcp", "udp", "fabric") and each.transports[others[0]] == "tcp+udp+fabric"
        assert (core.kinds, core.rails) == ([*each.kinds], [rail.name for rail in rails])
        assert sorted(core.sockets) == others and sorted(core.paths) == [(j, 1) for j in others]
        assert sorted(core.fabric_paths) == [(j, 2) for j in others]
        for (other, rail), path in core.fabric_paths.items():
            there = cores[other].fabric_paths[i, rail]
            assert path.sends == there.receives != path.receives
            assert path.address.hex() == f"{id(cores[other]):016x}"
            assert path.connection.getpeername() == there.connection.getsockname()
        assert each.repair is not None
        each.repair.close()


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("reason", ["kind", "protocol"])
def test_a_rail_of_two_kinds_is_left_out(cores: list[Core], reason: str, caplog: pytest.LogCaptureFixture) -> None:
    first = NamedRail("127.0.0.1")
    name = "127.0.0.2" if reason == "kind" else "fabric:verbs"
    rails = [
        (first, NamedRail(name, kind="fabric" if reason == "protocol" else kind)) for kind in ("tcp", "udp", "tcp")
    ]
    cores[1].protocol = 8
    found = all_members(connect_all(cores, [Settings("tcp", timeout_s=20, rails=each) for each in rails]))
    found_words = "tcp and udp" if reason == "kind" else "fabric verbs 7 and fabric verbs 8"
    line = f"no process uses the rail {name}, because it is {found_words} in different processes."
    assert line in caplog.text
    assert [each.rails for each in found] == [("127.0.0.1",)] * 3


@pytest.mark.usefixtures("store")
def test_a_fabric_that_cannot_be_opened_is_left_out(cores: list[Core], caplog: pytest.LogCaptureFixture) -> None:
    rails = named_rails("rails", "127.0.0.1,fabric:verbs")
    cores[1].lacks_fabric = True
    found = all_members(connect_all(cores, [Settings("tcp", timeout_s=20, rails=rails)] * 3))
    assert "the rail fabric:verbs cannot be used here: libfabric has no provider verbs" in caplog.text
    assert found[0].shares[1][0].shares.keys() == {"127.0.0.1"} and len(found[0].shares[2][0].shares) == 2
    for each in found:
        assert each.repair is not None
        each.repair.close()


@pytest.mark.usefixtures("store")
def test_each_pair_has_a_udp_path_over_every_rail(cores: list[Core]) -> None:
    rails = (NamedRail("127.0.0.1", 3), NamedRail("127.0.0.2", 1))
    found = all_members(connect_all(cores, [Settings("udp", timeout_s=20, rails=rails)] * 3))
    keys = set()
    for i, (core, each) in enumerate(zip(cores[:3], found, strict=True)):
        others = [j for j in range(3) if j != i]
        assert (core.kinds, core.rails, sorted(core.shares)) == (["udp"] * 2, ["127.0.0.1", "127.0.0.2"], others)
        assert sorted(core.paths) == [(j, rail) for j in others for rail in (0, 1)] and not core.sockets
        assert_paths_meet(cores, i)
        for (_, rail), path in core.paths.items():
            [udp] = path.sockets
            assert f"127.0.0.{rail + 1}" in {udp.socket.getsockname()[0], udp.socket.getpeername()[0]}
        keys |= {path.sockets[0].sends for path in core.paths.values()}
        assert each.repair is not None
        each.repair.close()
    assert len(keys) == 3 * 2 * 2


@pytest.mark.usefixtures("store")
def test_a_rail_that_was_found_and_lets_no_packets_through_is_not_used(
    cores: list[Core], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(udp_paths, "HANDSHAKE_S", 0.2)
    try_packet = udp_paths._Side.try_packet
    monkeypatch.setattr(
        udp_paths._Side, "try_packet", lambda side: None if side.end.name == "eth1" else try_packet(side)
    )
    addresses = iter(["127.0.0.2", "127.0.0.3"])  # the ends of a rail that was found differ

    def own_rails(*_: object) -> list[RailEnd]:
        return [RailEnd("", "", "127.0.0.1", 0, 0, ""), RailEnd("eth1", "", next(addresses), 0, 0, "127.0.0.0/8")]

    monkeypatch.setattr(rail_ends, "own_rails", own_rails)
    all_members(connect_all(cores, [Settings("udp", timeout_s=20)] * 2))
    for core, other in zip(cores[:2], (1, 0), strict=True):
        assert (core.rails, sorted(core.paths), core.sockets) == ([""], [(other, 0)], {})
    assert "no process uses the rail eth1: no UDP packets of 8972 bytes come through to process " in caplog.text


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("transport", ["auto", "shm"])
def test_processes_of_a_host_open_each_others_memory(cores: list[Core], transport: str) -> None:
    found = all_members(connect_all(cores, [Settings(transport, timeout_s=20)] * 3))
    assert found[1].transports == ("shm", "", "shm")
    for core in cores[:3]:
        assert not core.sockets
        for other, file in core.files.items():
            assert os.fstat(file).st_ino == os.fstat(cores[other].file).st_ino


@pytest.mark.usefixtures("store")
def test_between_hosts_it_is_tcp(cores: list[Core]) -> None:
    found = all_members(connect_all(cores, [Settings(host=name, timeout_s=20) for name in "aabb"]))
    assert [each.transports for each in found] == [
        ("", "shm", "tcp", "tcp"),
        ("shm", "", "tcp", "tcp"),
        ("tcp", "tcp", "", "shm"),
        ("tcp", "tcp", "shm", ""),
    ]


@pytest.mark.usefixtures("store")
def test_between_hosts_it_is_udp_where_the_plan_says_so(cores: list[Core]) -> None:
    planned = [Settings(host=name, timeout_s=20, planned_transport="udp") for name in "aabb"]
    found = all_members(connect_all(cores, [*planned]))
    assert [each.transports for each in found[1:3]] == [("shm", "", "udp", "udp"), ("udp", "udp", "", "shm")]
    for core, there in zip(cores[:4], ([2, 3], [2, 3], [0, 1], [0, 1]), strict=True):
        assert sorted(core.paths) == [(other, 0) for other in there]
        assert not core.sockets and core.hosts == [0, 0, 2, 2]


@pytest.mark.usefixtures("store")
def test_the_transport_that_a_user_names_goes_before_the_plans(cores: list[Core]) -> None:
    found = all_members(connect_all(cores, [TCP._replace(planned_transport="udp")] * 2))
    assert found[0].transports == ("", "tcp") and cores[0].kinds == ["tcp"] and not cores[0].paths


@pytest.mark.usefixtures("store")
def test_where_one_does_not_follow_the_plan_tcp_connects_all(
    cores: list[Core], caplog: pytest.LogCaptureFixture
) -> None:
    planned = {"a": "udp", "b": "", "c": "udp"}
    found = all_members(
        connect_all(cores, [Settings(host=name, timeout_s=20, planned_transport=planned[name]) for name in "abc"])
    )
    assert [each.transports for each in found] == [("", "tcp", "tcp"), ("tcp", "", "tcp"), ("tcp", "tcp", "")]
    assert sorted(cores[0].sockets) == [1, 2] and not cores[0].paths
    assert "processes 1 do not allow UDP; all processes use TCP." in caplog.text


@pytest.mark.usefixtures("store")
def test_hosts_do_not_share_memory(cores: list[Core]) -> None:
    for text in errors(connect_all(cores, [Settings("shm", host=name, timeout_s=20) for name in "ab"])):
        assert "JAXCOMM_TRANSPORT is shm, but process 0 (host a) and process 1 (host b) share no memory." in text


@pytest.mark.usefixtures("store")
def test_all_processes_want_the_same_transport(cores: list[Core]) -> None:
    chosen = [Settings("auto", timeout_s=20), Settings("tcp", timeout_s=20), Settings("auto", timeout_s=20)]
    found = errors(connect_all(cores, [*chosen]))
    assert all("JAXCOMM_TRANSPORT is " in text for text in found)
    assert found[1].startswith("JAXCOMM_TRANSPORT is auto in process 0 and tcp in process 1.\n  Cure: the same for all")


@pytest.mark.usefixtures("store")
def test_processes_that_do_not_come_are_named(cores: list[Core]) -> None:
    chosen = TCP._replace(timeout_s=0.3)
    found = errors(connect_all(cores, [chosen, None, chosen, None, chosen]))
    for process in (0, 2, 4):
        assert found[process].startswith("processes 1, 3 have not arrived in time") or (
            "could not be connected: processes 1, 3 have not arrived in time" in found[process]
        )


@pytest.mark.usefixtures("store")
def test_without_process_0_it_is_the_one_that_is_named(cores: list[Core]) -> None:
    found = errors(connect_all(cores, [None, TCP._replace(timeout_s=0.1)]))
    assert found[1].startswith("process 0 has not arrived in time.\n  Cure: run the same steps in all processes; JAX")


@pytest.mark.usefixtures("store")
def test_what_one_process_cannot_do_the_others_hear_at_once(cores: list[Core]) -> None:
    found = errors(connect_all(cores, [TCP, TCP._replace(interface="none0"), TCP]))
    assert found[1].startswith("JAXCOMM_INTERFACE is 'none0', which has no IP address here: No such device.\n")
    for process in (0, 2):
        assert found[process] == (
            "process 1 could not be connected: JAXCOMM_INTERFACE is 'none0', which has no IP address here: "
            "No such device.\n  Cure: see its error."
        )


@pytest.mark.usefixtures("store")
def test_sockets_are_bound_to_the_interface(cores: list[Core]) -> None:
    all_members(connect_all(cores, [TCP._replace(interface="lo")] * 2))
    for core in cores[:2]:
        for connection in core.sockets.values():
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0") == b"lo"
            assert connection.getsockname()[0] == "127.0.0.1"


def on_rails(*words: str) -> Settings:
    return TCP._replace(rails=tuple(NamedRail(name, int(rate)) for name, rate in (word.split(":") for word in words)))


@pytest.mark.usefixtures("store")
def test_each_pair_is_connected_by_every_rail_that_both_have(
    cores: list[Core], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rail_connections, "round_trip_s", lambda _: None)
    both = on_rails("127.0.0.1:4", "127.0.0.2:1")
    found = all_members(connect_all(cores, [both, both, on_rails("127.0.0.2:1")]))
    every = ["127.0.0.1", "127.0.0.2"]
    assert [core.rails for core in cores[:3]] == [every] * 3
    for i, j in ((0, 1), (1, 0)):
        assert cores[i].shares[j] == ([0, 1], [(0, [819, 205])])
        assert cores[i].shares[2] == ([1], [(0, [0, 1024])])
        for rail, connection in enumerate((cores[i].sockets[j], cores[i].others[j, 1])):
            assert {connection.getsockname()[0]} | {connection.getpeername()[0]} >= {f"127.0.0.{rail + 1}"}
        assert found[i].shares[j][0].shares == {"127.0.0.1": 819, "127.0.0.2": 205}
        assert [rail.name for rail in found[i].ends] == ["127.0.0.1", "127.0.0.2"]
    for each in found:
        assert each.repair is not None
        each.repair.close()
    assert cores[2].shares == {j: ([1], [(0, [0, 1024])]) for j in (0, 1)}
    assert "process 2 does not name the rails 127.0.0.1; no message to it uses them." in caplog.text


def round_trip_s(connection: socket.socket) -> float:
    return 1e-4 if "127.0.0.2" in {connection.getsockname()[0], connection.getpeername()[0]} else 1e-3


def planned_rails(fast: str, slow: str) -> PlanRails:
    shares = SharesFrom(0, {fast: 1024, slow: 0}), SharesFrom(9, {fast: 512, slow: 512})
    return PlanRails((PlanRail(slow, "tcp", 1e6), PlanRail(fast, "tcp", 4e6)), shares)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("planned", "expected"),
    [
        (None, [(0, [0, 1024]), (9375, [819, 205])]),  # 450 µs on the way, and 48 ns more for a byte
        (planned_rails("127.0.0.2", "127.0.0.1"), [(0, [0, 1024]), (9, [512, 512])]),
        (planned_rails("ib0", "ib1"), [(0, [1024, 0]), (9, [512, 512])]),
    ],
)
def test_without_planned_shares_small_calls_go_by_round_trips(
    cores: list[Core],
    monkeypatch: pytest.MonkeyPatch,
    planned: PlanRails | None,
    expected: list[tuple[int, list[int]]],
) -> None:
    monkeypatch.setattr(rail_connections, "round_trip_s", round_trip_s)
    chosen = [on_rails("127.0.0.1:500", "127.0.0.2:125")] * 3
    for each in all_members(connect_all(cores, [*chosen], planned)):
        assert each.round_trips == {
            (other, name): seconds
            for other in range(3)
            for name, seconds in (("127.0.0.1", 1e-3), ("127.0.0.2", 1e-4))
            if other != each.process
        }
        assert each.repair is not None
        each.repair.close()
    for i, core in enumerate(cores[:3]):
        assert core.shares == {j: ([0, 1], expected) for j in range(3) if j != i}


@pytest.mark.usefixtures("store")
def test_a_plan_of_unknown_rails_is_refused_by_all(cores: list[Core]) -> None:
    chosen = [on_rails("127.0.0.1:0", "127.0.0.2:0")] * 3
    for text in errors(connect_all(cores, [*chosen], planned_rails("ib0", "ib1"))):
        assert text.startswith("the plan's rails are ib1, ib0; this job's are 127.0.0.1, 127.0.0.2, and their rates")


@pytest.mark.usefixtures("store")
def test_processes_without_a_common_rail_are_named(cores: list[Core]) -> None:
    for text in errors(connect_all(cores, [on_rails("127.0.0.1:0"), on_rails("127.0.0.2:0")])):
        assert "process 0 has 127.0.0.1 and process 1 has 127.0.0.2: no rail is common to both.\n  Cure: the" in text


def secret_file(folder: Path, content: bytes) -> str:
    file = folder / content[:1].decode()
    file.write_bytes(content)
    file.chmod(0o600)
    return str(file)


def test_a_secret_in_a_file_is_not_published(cores: list[Core], store: Store, tmp_path: Path) -> None:
    content = b"a" * 32
    chosen = TCP._replace(secret_file=secret_file(tmp_path, content))
    all_members(connect_all(cores, [chosen] * 2))
    assert not any(content.hex() in value for value in store.values.values())


@pytest.mark.usefixtures("store")
def test_processes_with_different_secrets_are_not_connected(cores: list[Core], tmp_path: Path) -> None:
    chosen = [TCP._replace(secret_file=secret_file(tmp_path, letter * 32)) for letter in (b"a", b"b")]
    for text in errors(connect_all(cores, [*chosen])):
        assert "is not signed with this job's secret" in text


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("those", [(0,), (1,)])
def test_all_processes_have_a_secret_file_or_none(cores: list[Core], tmp_path: Path, those: tuple[int, ...]) -> None:
    file = secret_file(tmp_path, b"a" * 32)
    found = errors(connect_all(cores, [TCP._replace(secret_file=file if i in those else "") for i in range(2)]))
    assert f"JAXCOMM_SECRET_FILE is set in process {those[0]}, and not in process {1 - those[0]}." in found[1]
    assert found[0].startswith("process 1 could not be connected: JAXCOMM_SECRET_FILE is set in process")


def record(**changes: Any) -> Record:
    return Record(1, "tcp", False, "a", os.getpid(), 5, 6, (RailEnd("", "", "127.0.0.1", 7, 0, ""),))._replace(
        **changes
    )


def test_a_record_is_its_process_and_signed() -> None:
    text = records.signed(record(), KEY)
    assert records.verified(text, 1, KEY) == record()
    for bad in ("", "x", text[1:], text.replace("127.0.0.1", "127.0.0.2"), text + " ", "é" + text, text + "x" * 9000):
        with pytest.raises(JaxcommError, match=r"record of process 1 is not signed with this job's secret.\n  Cure"):
            records.verified(bad, 1, KEY)
    with pytest.raises(JaxcommError, match="process 2 published the record of process 1"):
        records.verified(text, 2, KEY)
    with pytest.raises(JaxcommError, match="is not signed"):
        records.verified(text, 1, secret.key(bytes(32), "job", 2))


@pytest.mark.parametrize(
    "changes",
    [{"pid": 2**22 + 1}, {"fd": 9999}],
)
def test_memory_that_cannot_be_opened_is_an_error(cores: list[Core], changes: dict[str, Any]) -> None:
    own = record(fd=cores[0].file)
    os.close(records.open_shared_memory(own))
    with pytest.raises(JaxcommError, match=r"shared memory of process 1, /proc/.* cannot be opened: No such file"):
        records.open_shared_memory(own._replace(**changes))


def test_connect_is_done_once_for_each_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "_connected", None)
    monkeypatch.setattr(members, "_core", None)
    monkeypatch.setattr(members, "_generation", 0)
    monkeypatch.setattr(jax_compat, "coordinator_address", lambda: "localhost:1")
    monkeypatch.setattr(jax, "process_count", lambda: 1)
    last: list[Core] = []
    for generation in (1, 2):
        made = Store()
        monkeypatch.setattr(jax_compat, "key_value_store", lambda made=made: made)
        first = members.connected(new_core=Core)
        assert members.connected(new_core=Core) is first
        assert first.generation == generation and first.transports == ("",)
        assert isinstance(first.core, Core) and not first.core.is_closed
        assert all(core.is_closed for core in last)
        last.append(first.core)


def test_a_restarted_process_rejoins_in_live_devices_only(
    monkeypatch: pytest.MonkeyPatch, cores: list[Core], store: Store
) -> None:
    all_members(connect_all(cores, [TCP] * 2))
    before = dict(store.values)
    monkeypatch.setattr(members, "_connected", None)
    assert members.join(new_core=Core) is None
    with pytest.raises(
        JaxcommError,
        match=r"process 0 is not connected yet; it connects in live_devices\.\n  Cure: run collectives inside",
    ):
        members.connected(new_core=Core)
    assert {key: store.values[key] for key in before} == before


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, store: Store) -> Iterator[None]:
    """This process is process 0 of two, started again, and the only live one."""
    monkeypatch.setattr(members, "_connected", None)
    monkeypatch.setattr(members, "_core", None)
    monkeypatch.setattr(jax_compat, "coordinator_address", lambda: "localhost:1")
    monkeypatch.setattr(jax_compat, "spans_processes", lambda: True)
    monkeypatch.setattr(jax_compat, "own_incarnation", lambda: 70)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    store.key_value_set("jaxcomm/record/0", "of an earlier start")
    yield
    store.values.clear()


@pytest.mark.usefixtures("alone")
def test_a_generation_lasts_until_a_member_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert members.join(new_core=Core) is None
    first = members.enter(0)
    assert (first.incarnation, first.generation) == (70, None)
    assert members.advance(first, {0: 70}, new_core=Core)
    second = members.enter(0)
    assert second.generation and members.advance(second, {0: 70}, new_core=Core)
    assert members.barriers() == 1 and members.enter(0).generation == second.generation
    monkeypatch.setattr(ffi, "gone", lambda: [{"process": 0}])  # as where the network between hosts was silent
    third = members.enter(0)
    assert third.generation is None
    assert members.advance(third, {0: 70}, new_core=Core)
    monkeypatch.setattr(ffi, "gone", list)
    assert members.enter(0).generation not in (None, second.generation) and members.barriers() == 0


@pytest.mark.usefixtures("alone")
def test_live_processes_that_cannot_connect_try_again(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    assert members.join(new_core=Core) is None

    def fails() -> Core:
        raise JaxcommError("no shared memory")

    assert not members.advance(members.enter(0), {0: 70}, new_core=fails)
    assert "the live processes 0 could not be connected: no shared memory" in caplog.text
    with pytest.raises(JaxcommError, match="no shared memory"):
        members.connected(new_core=Core)
    assert members.enter(0).generation is None
    assert members.advance(members.enter(0), {0: 70}, new_core=Core)
    assert members.connected(new_core=Core).incarnations == {0: 70}


@pytest.mark.usefixtures("alone")
def test_no_generation_begins_while_steps_of_the_last_one_run(caplog: Any) -> None:
    class Running(Core):
        runs = True

        def close(self, *, for_change: bool = False) -> None:
            if self.runs:
                raise StepsRunning("a step has not ended")
            super().close()

    first = Running()
    assert members.join(new_core=Core) is None
    assert members.advance(members.enter(0), {0: 70}, new_core=lambda: first)
    for _ in range(2):  # also the second time
        assert not members.advance(members.enter(0)._replace(generation=None), {0: 70}, new_core=Core)
    assert "a step has not ended" in caplog.text
    first.runs = False
    assert members.advance(members.enter(0), {0: 70}, new_core=Core) and first.is_closed


def test_some_processes_connect_without_the_others(cores: list[Core], store: Store) -> None:
    found = connect_all(cores, [TCP, None, TCP], live=[0, 2])
    first, missing, last = found
    assert isinstance(missing, JaxcommError)
    assert all_members([first, last])[0].transports == ("", "", "tcp")
    assert [list(each.incarnations) for each in (first, last) if isinstance(each, Membership)] == [[0, 2]] * 2
    assert cores[0].hosts[1] == membership.ABSENT and cores[2].hosts[1] == membership.ABSENT
    assert cores[0].host_names[1] == ""
    assert [*cores[0].sockets] == [2] and [*cores[2].sockets] == [0]


def test_a_failure_is_reported_again(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    monkeypatch.setattr(members, "_connected", None)
    monkeypatch.setattr(members, "_core", None)
    monkeypatch.setattr(jax_compat, "coordinator_address", lambda: "localhost:1")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setenv("JAXCOMM_CONNECT_TIMEOUT_S", "0.1")
    for _ in range(2):
        with pytest.raises(JaxcommError, match="process 1 has not arrived in time"):
            members.connected(new_core=Core)
    monkeypatch.setattr(jax_compat, "is_recoverable", lambda: True)
    assert members.join(new_core=Core) is None, "live_devices tries again"
    with pytest.raises(JaxcommError, match="process 1 has not arrived in time"):
        members.connected(new_core=Core)


def test_another_version_of_the_protocol_is_named_by_all(cores: list[Core], store: Store) -> None:
    """Process 2 is of the next version, and has published its record."""
    for stage in ("route", "record"):
        store.key_value_set(f"jaxcomm/{stage}/2", f"{stages.VERSION + 1} []")
    found = errors(connect_all(cores, [TCP, TCP, None]))[:2]
    mine, theirs = stages.VERSION, stages.VERSION + 1
    sentence = f"process 2 speaks version {theirs} of jaxcomm's protocol, and this process version {mine}."
    assert all(sentence in text for text in found)
    assert any(text == f"{sentence}\n  Cure: install the same version of jaxcomm for all processes." for text in found)


@pytest.mark.parametrize("text", ["failed: it has no version", "", "abc {}", "99999999999 []"])
def test_a_text_without_a_version_is_of_an_unknown_one(store: Store, text: str) -> None:
    store.key_value_set("jaxcomm/record/1", text)
    with pytest.raises(JaxcommError, match=r"^process 1 speaks an unknown version of jaxcomm's protocol, and this "):
        stages.lookup_all("record", [1], time.monotonic() + 5, "arrived")
