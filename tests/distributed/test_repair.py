"""Cut rails are reconnected over loopback, between processes that threads play and cores that only count."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from jaxcomm.distributed.connect import secret
from jaxcomm.distributed.connect.addresses import listening_socket
from jaxcomm.distributed.connect.fabric_paths import FabricPath
from jaxcomm.distributed.connect.handshake import CHALLENGE_BYTES, ConnectorSide
from jaxcomm.distributed.connect.path_keys import CipherKeys
from jaxcomm.distributed.connect.records import Record
from jaxcomm.distributed.connect.udp_paths import UdpPath
from jaxcomm.distributed.rails import outages, repair
from jaxcomm.distributed.rails.changed_addresses import ChangedAddresses
from jaxcomm.distributed.rails.outages import Outages, RailTo
from jaxcomm.distributed.rails.rail_ends import FabricEnd, RailEnd
from jaxcomm.distributed.rails.repair import Repair
from jaxcomm.errors import JaxcommError
from jaxcomm.log import say_once
from tests.distributed.narrow import drop_packets

KEY = secret.key(bytes(32), "job", 1)
NAMES = ["127.0.0.1", "127.0.0.2"]


class Core:
    """Says which rails are lost, and keeps what it is given for them."""

    def __init__(self) -> None:
        self.lost: dict[tuple[int, int], int] = {}
        self.restored: dict[tuple[int, int], socket.socket] = {}
        self.cipher_keys: list[CipherKeys] = []
        self.paths: list[UdpPath] = []
        self.fabric_paths: list[FabricPath] = []
        self.asked = 0
        self.changed = threading.Condition()

    def lost_rails(self) -> list[tuple[int, int, int]]:
        with self.changed:
            self.asked += 1
            self.changed.notify_all()
            return [(process, rail, cuts) for (process, rail), cuts in self.lost.items()]

    def restore_udp(self, process: int, rail: int, cuts: int, path: UdpPath) -> None:
        self.paths.append(path)
        self.restore_tcp(process, rail, cuts, path.connection.detach(), None)

    def restore_fabric(self, process: int, rail: int, cuts: int, path: FabricPath) -> None:
        self.fabric_paths.append(path)
        self.restore_tcp(process, rail, cuts, path.connection.detach(), None)

    def restore_tcp(self, process: int, rail: int, cuts: int, fd: int, keys: CipherKeys | None) -> None:
        with self.changed:
            self.cipher_keys += [keys] if keys else []
            made = socket.socket(fileno=fd)
            if self.lost.get((process, rail)) != cuts:
                made.close()
                raise JaxcommError("this rail is not cut")
            del self.lost[process, rail]
            self.restored[process, rail] = made
            self.changed.notify_all()

    def cut(self, process: int, rail: int, cuts: int) -> None:
        with self.changed:
            if (made := self.restored.pop((process, rail), None)) is not None:
                made.close()
            self.lost[process, rail] = cuts

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 20)


class Addresses(ChangedAddresses):
    """The changed addresses of all processes of a job."""

    published: dict[tuple[int, str], tuple[str, int]]
    answers = threading.Event()  # cleared while the store does not answer

    def publish(self, rail: str, address: str, port: int) -> None:
        assert self.answers.wait(60)
        self.published[self._process, rail] = address, port

    def find(self, process: int, rail: str) -> tuple[str, int] | None:
        assert self.answers.wait(60)
        return self.published.get((process, rail))


class Job:
    """Its processes, each with both rails, and the sockets that they listen on."""

    def __init__(self, processes: int, kind: str, *, encrypts: bool = False) -> None:
        self.cores = [Core() for _ in range(processes)]
        self.published: dict[tuple[int, str], tuple[str, int]] = {}
        bound = [{name: listening_socket(name, "") for name in NAMES} for _ in self.cores]
        for each in (each for own in bound for each in own.values()):
            each.listen(1024)  # as since the start of the job
        self.ports = [{name: each.getsockname()[1] for name, each in own.items()} for own in bound]
        endpoint = FabricEnd("verbs", "mlx5_0", 7, "00ff")
        ends = [
            tuple(RailEnd(name, "", name, own[name], 0, "", kind=kind, fabric=endpoint) for name in NAMES)
            for own in self.ports
        ]
        records = [Record(i, kind, kind == "udp", "", 1, -1, 0, own, encrypts=encrypts) for i, own in enumerate(ends)]
        self.repairs = [
            Repair(
                *(core, records[i], {j: each for j, each in enumerate(records) if j != i}),
                *(dict.fromkeys(NAMES, kind), KEY, bound[i], self.addresses(i)),
            )
            for i, core in enumerate(self.cores)
        ]

    def addresses(self, process: int) -> Addresses:
        """The addresses as a process sees them."""
        made = Addresses(process)
        made.published = self.published
        return made

    def cut(self, one: int, other: int, rail: int, cuts: int) -> None:
        for core, process in ((self.cores[one], other), (self.cores[other], one)):
            core.cut(process, rail, cuts)

    def assert_connected(self, one: int, other: int, rail: int) -> None:
        """Waits until both have the same connection; `one` is the lower."""
        ends = []
        for core, process in ((self.cores[one], other), (self.cores[other], one)):
            core.wait_for(lambda core=core, process=process: (process, rail) in core.restored)  # type: ignore[misc]
            ends.append(core.restored[process, rail])
        assert ends[0].getsockname() == ends[1].getpeername()
        assert ends[0].getsockname()[0] == NAMES[rail]
        assert not any(os.get_blocking(end.fileno()) for end in ends)


@pytest.fixture(params=["tcp", "udp", "fabric", "encrypted tcp", "encrypted udp"])
def job(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(repair, "_POLL_S", 0.02)
    monkeypatch.setattr(repair, "_ATTEMPT_S", 0.2)
    Addresses.answers.set()
    made = Job(3, request.param.split()[-1], encrypts=request.param.startswith("encrypted"))
    yield made
    for each in made.repairs:
        each.close()
    for core in made.cores:
        for connection in (*core.restored.values(), *(each.socket for path in core.paths for each in path.sockets)):
            connection.close()


def test_cut_rails_are_reconnected_and_logged(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    for cuts in (1, 2):
        for one, other, rail in ((0, 1, 1), (0, 2, 0), (1, 2, 1)):
            job.cut(one, other, rail, cuts)
        for one, other, rail in ((0, 1, 1), (0, 2, 0), (1, 2, 1)):
            job.assert_connected(one, other, rail)
    logged = [each.message for each in caplog.records]
    keys = {path.sockets[0].sends for core in job.cores for path in core.paths}
    assert len(keys) == sum(len(core.paths) for core in job.cores)  # no path has those of one before the cut
    cipher_keys = [keys.sends for core in job.cores for keys in core.cipher_keys]
    own = job.repairs[0]._own
    assert len({*cipher_keys}) == len(cipher_keys) == 12 * (own.encrypts and own.transport == "tcp")
    assert {path.seals for core in job.cores for path in core.paths} <= {"gcm" if own.encrypts else "siphash"}
    begin = "the rail 127.0.0.1, to process 2, is "  # process 0 says so
    assert logged.count(f"{begin}cut; the other rails carry its part until it is back.") == 1
    assert sum(each.startswith(f"{begin}back after ") for each in logged) == 1


def test_rails_come_back_although_the_store_does_not_answer(job: Job) -> None:
    Addresses.answers.clear()
    for cuts in (1, 2, 3):
        job.cut(0, 1, 1, cuts)
        job.assert_connected(0, 1, 1)
    Addresses.answers.set()


def test_a_rail_that_loses_long_packets_is_named(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    say_once.cache_clear()
    drop_packets(job.repairs[0]._bound[NAMES[1]], longer_than=1000)  # also of the connections that it accepts
    job.cut(0, 1, 1, 1)
    words = "the rail 127.0.0.2, to process 0, does not come back: short messages come through, but 32 KiB did not"
    deadline = time.monotonic() + 60
    while not (logged := [each.message for each in caplog.records if each.message.startswith(words)]):
        assert time.monotonic() < deadline, caplog.text
        time.sleep(0.05)
    assert "the same MTU" in logged[0]
    assert not job.cores[0].restored


def test_it_waits_until_both_know_of_the_same_cut(job: Job) -> None:
    job.cores[1].cut(0, 0, 4)
    job.cores[0].cut(1, 0, 3)
    asked = [core.asked for core in job.cores]
    for core, before in zip(job.cores, asked, strict=True):
        core.wait_for(lambda core=core, before=before: core.asked > before + 20)  # type: ignore[misc]
    assert not job.cores[0].restored and not job.cores[1].restored
    job.cores[0].cut(1, 0, 4)
    job.assert_connected(0, 1, 0)


def test_a_rail_that_answers_nothing_keeps_no_other_waiting(job: Job) -> None:
    with socket.create_server((NAMES[0], 0)) as silent:
        peers = job.repairs[2]._peers
        ends = peers[0].rails
        ends = (ends[0]._replace(port=silent.getsockname()[1]), *ends[1:])
        job.repairs[2]._peers = {**peers, 0: peers[0]._replace(rails=ends)}
        job.cut(0, 2, 0, 1)
        job.cores[2].wait_for(lambda: (0, 0) in job.repairs[2]._began)
        job.cut(1, 2, 0, 1)
        job.assert_connected(1, 2, 0)
        assert (0, 0) not in job.cores[2].restored


def test_nobody_is_answered_while_no_rail_is_cut(job: Job) -> None:
    port = job.ports[0][NAMES[0]]
    held = [socket.create_connection((NAMES[0], port)) for _ in range(200)]  # more than may be pending
    for each in held:
        each.sendall(b"x" * 10)
    assert not job.repairs[0]._listeners
    job.cut(0, 1, 0, 1)
    job.assert_connected(0, 1, 0)
    job.cores[0].wait_for(lambda: not job.repairs[0]._listeners)
    side = ConnectorSide(KEY, process=1, listener=0, rail=0, cuts=1)
    with socket.create_connection((NAMES[0], port)) as late, contextlib.suppress(TimeoutError, ConnectionResetError):
        late.sendall(side.hello)
        late.settimeout(0.1)
        assert not late.recv(CHALLENGE_BYTES)
    for each in held:
        each.close()


def test_after_it_is_closed_nothing_is_asked_of_the_core(job: Job) -> None:
    job.cut(0, 2, 0, 1)
    job.assert_connected(0, 2, 0)
    for each in job.repairs:
        each.close()
        each.close()
    asked = [core.asked for core in job.cores]
    job.cut(0, 1, 0, 1)
    job.repairs[0]._expects(1, 1, rail=0)
    with socket.create_server((NAMES[0], 0)) as server, socket.create_connection(server.getsockname()) as other:
        late = server.accept()[0]
        late.setblocking(False)
        job.repairs[0]._restore(1, 1, late, rail=0, deadline=0.0)
        other.settimeout(20)
        while other.recv(4096):  # until it is closed
            pass
    assert [core.asked for core in job.cores] == asked
    for each in [each for each in threading.enumerate() if each.name.startswith("jaxcomm repair")]:
        each.join(20)
        assert not each.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((NAMES[0], job.ports[0][NAMES[0]]))


def test_a_rail_that_is_cut_repeatedly_is_logged_seldom(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    found = Outages(["", "eth1"])

    def step(seconds: float, cuts: dict[RailTo, int]) -> list[str]:
        clock[0] += seconds
        caplog.clear()
        found.update(cuts)
        return [each.message for each in caplog.records]

    both = {RailTo(3, 1): 1, RailTo(2, 1): 1, RailTo(2, 0): 1}
    until = "; the other rails carry its part until it is back."
    assert step(1, both) == [
        f"the rail to the coordinator, to process 2, is cut{until}",
        f"the rail eth1, to processes 2, 3, is cut{until}",
    ]
    assert step(1, both) == []
    clock[0] += 0.5
    found.end(RailTo(2, 1))
    assert caplog.messages == ["the rail eth1, to process 2, is back after 1.5 s."]
    assert step(1, {RailTo(2, 1): 2}) == []
    found.end(RailTo(2, 1))  # an event that was not logged does not end
    assert caplog.messages == []
    assert step(1, {RailTo(2, 1): 3}) == []
    assert step(outages._QUIET_S, {RailTo(2, 1): 3}) == [f"the rail eth1, to process 2, is cut (3 times so far){until}"]
