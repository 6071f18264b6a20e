"""UDP paths: both sides agree on their keys and sizes, and what does not come through is an error."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxcomm.distributed.connect import secret, udp_paths
from jaxcomm.distributed.connect.udp_paths import UdpPath
from jaxcomm.distributed.rails.rail_ends import RailEnd
from jaxcomm.errors import JaxcommError
from tests.distributed.narrow import Narrow

KEY = secret.key(bytes(32), "job", 1)
ENDS = {"": RailEnd("", "", "127.0.0.1", 0, 0, "")}


@pytest.fixture
def connections() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other = server.accept()[0]
        with other:
            one.setblocking(False)
            other.setblocking(False)
            yield one, other


def agreed(connections: tuple[socket.socket, socket.socket], keys: tuple[bytes, bytes]) -> list[UdpPath | str]:
    """The paths that processes 3 and 7 end with."""

    def one(process: int) -> UdpPath | str:
        mine = connections[process == 7]
        with contextlib.ExitStack() as stack:
            try:
                other = 10 - process
                soon = time.monotonic() + 30
                found = udp_paths.agree(
                    process, {(other, ""): mine}, ENDS, keys[process == 7], soon, stack, {other: "siphash"}
                )
                stack.pop_all()
                return found.paths[other, ""]
            except JaxcommError as error:
                return str(error)

    with ThreadPoolExecutor(2) as pool:
        return [*pool.map(one, (3, 7))]


def test_they_agree_over_connections_that_take_little_at_a_time(
    connections: tuple[socket.socket, socket.socket],
) -> None:
    one, other = (Narrow(fileno=os.dup(each.fileno())) for each in connections)
    with one, other:
        one.setblocking(False)
        other.setblocking(False)
        for path in agreed((one, other), (KEY, KEY)):
            assert isinstance(path, UdpPath)
            path.close_sockets()


def test_both_sides_agree_and_packets_pass(connections: tuple[socket.socket, socket.socket]) -> None:
    one, other = agreed(connections, (KEY, KEY))
    assert isinstance(one, UdpPath)
    assert isinstance(other, UdpPath)
    [near], [far] = one.sockets, other.sockets
    with near.socket, far.socket:
        assert near.sends == far.receives != near.receives == far.sends
        assert len(near.sends) == 16
        assert one.packet_bytes == other.packet_bytes == 9000 - 28  # of the loopback, whose MTU is more
        assert min(one.window, other.window) >= 50_000
        near.socket.settimeout(60)
        far.socket.send(b"x" * one.packet_bytes)
        while (packet := near.socket.recv(1 << 16)) != b"x" * one.packet_bytes:
            assert len(packet) == one.packet_bytes  # a trial that came late
        for connection in connections:
            with pytest.raises(BlockingIOError):
                connection.recv(1)


def test_each_path_has_keys_of_its_own(connections: tuple[socket.socket, socket.socket]) -> None:
    keys = set()
    for _ in range(2):
        for path in agreed(connections, (KEY, KEY)):
            assert isinstance(path, UdpPath)
            keys.add(path.sockets[0].sends)
            path.close_sockets()
    assert len(keys) == 4


def test_several_paths_have_ports_and_keys_of_their_own(
    connections: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter((5, 3))  # the side with fewer paths determines their number
    monkeypatch.setattr(udp_paths, "udp_paths", lambda: next(numbers))
    one, other = agreed(connections, (KEY, KEY))
    assert isinstance(one, UdpPath)
    assert isinstance(other, UdpPath)
    ends = [one.sockets, other.sockets]
    assert len(ends[0]) == len(ends[1]) == 3
    for near, far in zip(*ends, strict=True):
        assert near.socket.getpeername() == far.socket.getsockname()
        assert far.socket.getpeername() == near.socket.getsockname()
        assert (near.sends, near.receives) == (far.receives, far.sends)
    assert len({each.sends for end in ends for each in end}) == 6
    for path in (one, other):
        path.close_sockets()


@pytest.mark.parametrize("passing", [0, 2])
def test_one_path_that_passes_packets_suffices(
    connections: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch, passing: int
) -> None:
    monkeypatch.setattr(udp_paths, "udp_paths", lambda: 3)
    read_packet = udp_paths._Side.read_packet

    def read(side: udp_paths._Side, number: int) -> None:
        if number == passing:
            read_packet(side, number)
        else:
            with contextlib.suppress(OSError):
                side.sockets[number].recv(1 << 16)  # which is lost

    monkeypatch.setattr(udp_paths._Side, "read_packet", read)
    for path in agreed(connections, (KEY, KEY)):
        assert isinstance(path, UdpPath)
        assert len(path.sockets) == 3
        path.close_sockets()


def test_a_process_with_another_key_is_refused(connections: tuple[socket.socket, socket.socket]) -> None:
    found = agreed(connections, (KEY, secret.key(bytes(32), "job", 2)))
    assert "process 7 does not sign with this job's key.\n  Cure: " in str(found[0])


def test_packets_that_never_come_are_an_error_that_names_their_size(
    connections: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    agree: set[int] = set()
    monkeypatch.setattr(udp_paths._Side, "try_packet", lambda side: agree.add(side.other) if side._theirs else None)
    clock = types.SimpleNamespace(monotonic=lambda: 1e9 if len(agree) == 2 else 0.0)  # late once both have agreed
    monkeypatch.setattr(udp_paths, "time", clock)
    for found, other in zip(agreed(connections, (KEY, KEY)), (7, 3), strict=True):
        assert f"no UDP packets of 8972 bytes come through to process {other} at 127.0.0.1." in str(found)
        assert "JAXCOMM_TRANSPORT=tcp" in str(found)


def test_a_process_that_hangs_up_is_an_error(connections: tuple[socket.socket, socket.socket]) -> None:
    connections[1].close()
    with pytest.raises(JaxcommError, match="process 7 hung up"), contextlib.ExitStack() as stack:
        udp_paths.agree(3, {(7, ""): connections[0]}, ENDS, KEY, time.monotonic() + 30, stack, {7: "siphash"})
