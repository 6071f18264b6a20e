"""Sums between two processes with encryption, and what a reader of the network's packets sees of them."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from tests.processes import jobs
from tests.processes.encryption import ELEMENTS, PATTERN

_ALL_PROTOCOLS = 3  # ETH_P_ALL in linux/if_ether.h
_FILTER = 26  # SO_ATTACH_FILTER in asm-generic/socket.h
_RECEIVE_BUFFER = 33  # SO_RCVBUFFORCE
_ADDRESS = "127.0.0.77"  # other tests use the loopback device at the same time


def run(*words: str, **variables: str) -> list[jobs.Process]:
    names = {"JAXCOMM_RAILS": "127.0.0.1", **variables}
    return jobs.run("tests.processes.encryption", *words, processes=2, transport="auto", timeout_s=150, **names)


def assert_right(found: list[jobs.Process], kinds: list[str]) -> None:
    assert [each.status for each in found] == [0, 0], "\n".join(each.output for each in found)
    assert [each.reports["sum"] for each in found] == [{"right": True, "kinds": kinds}] * 2


class Packets:
    """The packets to _ADDRESS that the loopback device carried: their bytes, and how many contain PATTERN."""

    def __init__(self) -> None:
        self.bytes = self.readable = 0


@contextlib.contextmanager
def sniffed() -> Iterator[Packets]:
    """Reads all packets to _ADDRESS meanwhile. Skips the test if this user may not read packets."""
    program = ctypes.create_string_buffer(_filter_of(_ADDRESS))
    try:
        reader = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
        reader.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER, 64 << 20)
        reader.setsockopt(socket.SOL_SOCKET, _FILTER, struct.pack("HP", len(program) // 8, ctypes.addressof(program)))
    except PermissionError:
        pytest.skip("this user may not read the network's packets")
    packets, end = Packets(), threading.Event()

    def read() -> None:
        while True:
            try:
                packet = reader.recv(1 << 17)
            except TimeoutError:
                if end.is_set():
                    return
                continue
            packets.bytes += len(packet)
            packets.readable += PATTERN in packet

    with reader:
        reader.bind(("lo", 0))
        reader.settimeout(0.1)
        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield packets
        finally:
            end.set()
            thread.join()


def _filter_of(address: str) -> bytes:
    """A classic BPF program that keeps Ethernet frames with IPv4 packets to this address."""
    load, equal, end = 0x20, 0x15, 0x06  # BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ, BPF_RET in linux/filter.h
    [number] = struct.unpack("!I", socket.inet_aton(address))
    lines = [(load, 0, 0, 14 + 16), (equal, 0, 1, number), (end, 0, 0, 1 << 17), (end, 0, 0, 0)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)


@pytest.mark.parametrize("kind", ["tcp", "udp"])
@pytest.mark.parametrize("encrypts", [False, True], ids=["readable", "encrypted"])
def test_only_encrypted_packets_hide_what_is_summed(kind: str, encrypts: bool) -> None:
    with sniffed() as packets:
        assert_right(run(JAXCOMM_RAILS=f"{kind}:{_ADDRESS}", JAXCOMM_ENCRYPT=str(int(encrypts))), [kind])
    assert packets.bytes > 4 * ELEMENTS
    assert (packets.readable > 0) == (not encrypts)


def test_rails_of_both_kinds_carry_an_encrypted_sum() -> None:
    rails = "127.0.0.1:500,udp:127.0.0.2:250,127.0.0.3:250"
    found = run(JAXCOMM_RAILS=rails, JAXCOMM_UDP_PATHS="3", JAXCOMM_ENCRYPT="1")
    assert_right(found, ["tcp", "udp", "tcp"])


def test_processes_that_disagree_all_say_so() -> None:
    for each in run("one"):
        text = "JAXCOMM_ENCRYPT is off in process 0 and on in process 1."
        assert text in each.reports["sum"]["error"], each.output
