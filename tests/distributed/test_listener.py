"""A listener, and what strangers do to it: each is closed and counted, and none keeps a process of the job out."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxcomm.distributed.connect import listener, secret
from jaxcomm.distributed.connect.connector import connect_to
from jaxcomm.distributed.connect.handshake import CHALLENGE_BYTES, HELLO_BYTES, ConnectorSide
from jaxcomm.distributed.rails.rail_ends import RailEnd
from jaxcomm.errors import JaxcommError
from tests.distributed.narrow import NarrowDoor, drop_packets

KEY = secret.key(bytes(32), "job", 1)


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[listener.Listener]:
    monkeypatch.setattr(listener, "HANDSHAKE_S", 0.3)
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    with bound:
        made = listener.Listener(bound, KEY, process=0, processes=2, rail=0)
        yield made
        made.abandon()


def connected(door: listener.Listener, key: bytes = KEY, seconds: float = 20) -> socket.socket:
    address, port = door.address
    return connect_to(
        0,
        RailEnd("", "", address, port, 0, ""),
        key,
        process=1,
        rail=0,
        interface="",
        deadline=time.monotonic() + seconds,
    )


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(10)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_one_that_says_nothing_is_closed(door: listener.Listener) -> None:
    with socket.create_connection(door.address) as silent:
        assert is_closed(silent)
    with connected(door):
        pass
    assert door.strangers == 1


def test_one_to_whom_little_can_be_sent_at_a_time_gets_in() -> None:
    with NarrowDoor() as bound:
        bound.bind(("127.0.0.1", 0))
        door = listener.Listener(bound, KEY, process=0, processes=2, rail=0)
        with connected(door):
            pass
        for kept in door.close().values():
            kept.close()
    assert door.strangers == 0


def test_a_way_that_loses_long_packets_is_named(door: listener.Listener) -> None:
    drop_packets(door._socket, longer_than=1000)  # also of the connections that it accepts
    with pytest.raises(JaxcommError, match="short messages come through, but 32 KiB did not in time") as error:
        connected(door, seconds=4)
    assert "the same MTU" in str(error.value)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n" + b"x" * 100, bytes(1000), b"jaxcomm1" * 20])
def test_one_that_says_garbage_is_closed_and_logged_once(
    door: listener.Listener, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    for _ in range(3):
        with socket.create_connection(door.address) as stranger:
            stranger.sendall(garbage)
            assert is_closed(stranger)
    assert door.strangers == 3
    [message] = [each.message for each in caplog.records]
    assert message.startswith("process 0 closed a connection from 127.0.0.1:")


def test_one_that_hangs_up_halfway_keeps_nobody_out(door: listener.Listener) -> None:
    for length in (0, 1, 50, HELLO_BYTES):
        side = ConnectorSide(KEY, process=1, listener=0, rail=0, cuts=0)
        with socket.create_connection(door.address) as half:
            half.sendall(side.hello[:length])
    with connected(door) as made:
        assert made.getpeername() == door.address
        [accepted] = door.close().values()
        assert accepted.getpeername() == made.getsockname()
        accepted.close()


def test_a_replayed_hello_is_closed(door: listener.Listener) -> None:
    hello = ConnectorSide(KEY, process=1, listener=0, rail=0, cuts=0).hello
    with socket.create_connection(door.address) as first, socket.create_connection(door.address) as second:
        first.sendall(hello)
        assert len(first.recv(1000)) == CHALLENGE_BYTES
        second.sendall(hello)
        assert is_closed(second)


def test_a_process_of_another_job_gives_up_at_its_deadline(door: listener.Listener) -> None:
    with pytest.raises(JaxcommError, match=r"process 0 at 127.0.0.1:\d+ cannot be reached: .*\n  Cure: "):
        connected(door, secret.key(bytes(32), "another job", 1), seconds=0.2)
    assert door.strangers >= 1


def test_the_newest_connection_of_a_process_counts(door: listener.Listener) -> None:
    with connected(door) as first, connected(door) as second:
        assert is_closed(first)
        accepted = door.close()[1]
        assert accepted.getpeername() == second.getsockname()
        accepted.close()


def test_a_flood_of_strangers_keeps_no_process_out(door: listener.Listener) -> None:
    done = threading.Event()

    def flood() -> None:
        held: list[socket.socket] = []
        while not done.is_set():
            try:
                held.append(socket.create_connection(door.address, timeout=1))
                held[-1].sendall(b"x" * (len(held) % 200))
            except OSError:
                continue
            if len(held) > 150:
                held.pop(0).close()
        for each in held:
            each.close()

    with ThreadPoolExecutor(3) as pool:
        try:
            for _ in range(3):
                pool.submit(flood)
            deadline = time.monotonic() + 20
            while door.strangers < 500 and time.monotonic() < deadline:
                time.sleep(0.01)
            with connected(door):
                pass
        finally:
            done.set()
    assert door.strangers >= 500
    assert len(door._pending) <= listener._MOST_PENDING


def test_nobody_listens(door: listener.Listener) -> None:
    door.close()
    door._socket.close()
    with pytest.raises(
        JaxcommError, match=r"process 0 at 127.0.0.1:\d+ refuses connections: .*\n  Cure: 127.0.0.1 can "
    ):
        connected(door)


def test_somebody_else_listens(door: listener.Listener) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(bytes(1000))

        door.address = other.getsockname()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(answer)
            with pytest.raises(JaxcommError, match=r"another process answers for process 0 at 127\.0\.0\.1"):
                connected(door)
