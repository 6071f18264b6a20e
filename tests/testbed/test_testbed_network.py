"""Running testbeds: rates, racks, loss, cuts, other traffic, and isolation between testbeds. Needs root."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jaxcomm import testbed
from jaxcomm.testbed import Layout, Testbed, network
from jaxcomm.testbed.processes import TRAFFIC

pytestmark = pytest.mark.root

DEADLINE_S = 30.0  # of each process, in seconds
TRIES = 3  # a busy machine may slow a sender down, but never speeds it up
TWO = [{"name": "a"}, {"name": "b"}]

PING = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.05); s.connect((sys.argv[1], 7000))
printed, missed = None, 0
while True:
    try:
        s.send(b"?"); s.recv(1); missed = 0
    except OSError:  # also ENETDOWN and the like
        missed += 1
    now = "reached" if not missed else "lost" if printed and missed >= 3 else printed  # it may begin before its peer
    if now != printed: print(now, flush=True)
    printed = now
"""
ECHO = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((sys.argv[1], 7000))
while True: _, peer = s.recvfrom(9); s.sendto(b"!", peer)
"""


def made(**fields: object) -> Testbed:
    return Testbed.model_validate({"rails": [{"name": "eth0", "mbit": 100}], "hosts": TWO, **fields})


@contextmanager
def python(layout: Layout, host: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = testbed.on_its_host([sys.executable, "-I", *words])
    own = next(each for each in testbed.environments(layout) if each["JAXCOMM_HOST"] == host)
    with subprocess.Popen(command, env=os.environ | own, stdout=subprocess.PIPE, text=True) as process:
        deadline = threading.Timer(DEADLINE_S, process.kill)  # then `first_line` returns an empty line
        deadline.start()
        try:
            yield process
        finally:
            deadline.cancel()
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def mbit(layout: Layout, src: str, dst: str, rail: str = "eth0") -> float:
    """The rate at which one TCP connection's bytes arrive, without headers."""
    end = (layout.address(dst, rail), "7001")
    with (
        python(layout, dst, str(TRAFFIC), "receive", *end) as receiver,
        python(layout, src, str(TRAFFIC), "send", *end, "0.7"),
    ):
        count, seconds = re.findall(r"[\d.]+", first_line(receiver))
    return float(count) * 8e-6 / float(seconds)


def assert_rate(layout: Layout, src: str, dst: str, rail: str, rate: float) -> None:
    found = []
    while len(found) < TRIES and (not found or max(found) < 0.9 * rate):
        found.append(mbit(layout, src, dst, rail))
    assert 0.9 * rate <= max(found) <= 1.03 * rate, found


@pytest.mark.slow
def test_links_uplinks_and_rails_have_their_rates() -> None:
    wanted = made(
        rails=[{"name": "eth0", "mbit": 200}, {"name": "eth1", "mbit": 80}],
        racks=[{"name": "left", "uplink_mbit": 50}, {"name": "right", "uplink_mbit": 50}],
        hosts=[{"name": "a", "rack": "left"}, {"name": "b", "rack": "left"}, {"name": "c", "rack": "right"}],
    )
    with testbed.up(wanted) as layout:
        assert_rate(layout, "a", "b", "eth0", 200)
        assert_rate(layout, "b", "a", "eth1", 80)
        assert_rate(layout, "a", "c", "eth0", 50)
        assert_rate(layout, "c", "b", "eth1", 50)
        links = {(link.host, link.rail): link for link in testbed.counters(layout)}
    assert links["a", "eth0"].sent_bytes > 0.7 * 0.9 * 200e6 / 8
    assert links["c", "eth0"].received_bytes > 0.7 * 0.9 * 50e6 / 8
    assert all(link.random_losses == 0 for link in links.values())


def test_connections_use_the_congestion_control_of_the_file() -> None:
    """Even if the machine uses another congestion control, and forbids this one in other namespaces."""
    code = (
        "import socket, sys; server = socket.create_server((sys.argv[1], 7002)); print('ready', flush=True); "
        "print(server.accept()[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b'\\0').decode())"
    )
    client = (
        "import socket, sys; s = socket.create_connection((sys.argv[1], 7002)); "
        "print(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b'\\0').decode())"
    )
    with testbed.up(made(congestion_control="cubic")) as layout:
        address = layout.address("b", "eth0")
        with python(layout, "b", "-c", code, address) as server:
            assert first_line(server) == "ready"
            with python(layout, "a", "-c", client, address) as sender:
                assert (first_line(sender), first_line(server)) == ("cubic", "cubic")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["silent", "one-way", "down", "no-udp"])
def test_a_link_is_cut_and_repaired(kind: str) -> None:
    wanted = made(cuts=[{"host": "b", "at_s": 0, "repaired_s": 0.1, "kind": kind}])
    with testbed.up(wanted) as layout:
        address = layout.address("b", "eth0")
        with python(layout, "b", "-c", ECHO, address), python(layout, "a", "-c", PING, address) as ping:
            assert first_line(ping) == "reached"
            for command in network.cut(layout, wanted.cuts[0]):
                subprocess.run(command, check=True)
            assert first_line(ping) == "lost"
            for command in network.repair(layout, wanted.cuts[0]):
                subprocess.run(command, check=True)
            assert first_line(ping) == "reached"


def test_a_link_resets_connections_or_is_slow() -> None:
    cuts = [{"host": "b", "at_s": at, "repaired_s": at + 1, "kind": kind} for at, kind in enumerate(("reset", "slow"))]
    server = "import socket, sys; s = socket.create_server((sys.argv[1], 7001)); print('ready', flush=True); s.accept()"
    client = "import socket, sys; s = socket.create_connection((sys.argv[1], 7001), 20); print('connected')"
    with testbed.up(made(cuts=cuts)) as layout:
        reset, slow = layout.testbed.cuts
        address, shaper = (
            layout.address("b", "eth0"),
            ("tc", "-n", layout.namespace("b"), "qdisc", "show", "dev", "eth0"),
        )

        def run(commands: list[network.Command]) -> None:
            for command in commands:
                subprocess.run(command, check=True)

        with python(layout, "b", "-c", server, address) as listening:
            assert first_line(listening) == "ready"
            run(network.cut(layout, reset))
            with python(layout, "a", "-c", client, address) as refused:
                assert first_line(refused) == ""
            run(network.repair(layout, reset))
            with python(layout, "a", "-c", client, address) as accepted:
                assert first_line(accepted) == "connected"
        run(network.cut(layout, slow))
        assert "rate 8Kbit" in subprocess.run(shaper, check=True, capture_output=True, text=True).stdout
        run(network.repair(layout, slow))
        assert "rate" not in subprocess.run(shaper, check=True, capture_output=True, text=True).stdout


def test_events_happen_while_the_processes_run(capfd: pytest.CaptureFixture[str]) -> None:
    cuts = [{"host": "a", "at_s": 0, "repaired_s": 0.2}]
    wanted = made(cuts=cuts, flows=[{"src": "a", "dst": "b", "start_s": 0.3}])
    deadline = time.monotonic() + DEADLINE_S
    with testbed.up(wanted) as layout, testbed.happening(layout):
        while testbed.counters(layout)[1].received_bytes < 1e6:  # bytes of the flow, which needs the repaired link
            assert time.monotonic() < deadline
    printed = [line.partition(" s: ")[2] for line in capfd.readouterr().err.splitlines()]
    assert printed == [
        "the link of a to eth0 is cut (silent)",
        "the link of a to eth0 is repaired",
        "traffic from a to b over eth0 starts",
    ]


def test_packets_are_lost_at_random_and_counted() -> None:
    """Each datagram is lost independently, even if the sender passes several datagrams to the kernel in one call."""
    sent, rate = 4000, 0.2
    receive = (
        "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((sys.argv[1], 7003)); "
        # 33: SO_RCVBUFFORCE, 103: UDP_SEGMENT, for which Python has no names
        "s.setsockopt(socket.SOL_SOCKET, 33, 1 << 26); print('ready', flush=True); count = 0\n"
        "while s.recv(2000)[:1] != b'.': count += 1\n"
        "print(count, flush=True)"
    )
    send = (
        "import socket, sys, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
        "s.connect((sys.argv[1], 7003)); s.setsockopt(socket.IPPROTO_UDP, 103, 100)\n"
        f"for _ in range({sent // 20}): s.send(b'x' * 2000)\n"
        "while True: s.send(b'.'); time.sleep(0.01)"
    )
    with testbed.up(made(packet_loss=[{"host": "b", "rate": rate}])) as layout:
        address = layout.address("b", "eth0")
        with python(layout, "b", "-c", receive, address) as receiver:
            assert first_line(receiver) == "ready"
            with python(layout, "a", "-c", send, address):
                received = int(first_line(receiver))
        lost = testbed.counters(layout)[1].random_losses
    assert 0.15 * sent < sent - received < 0.25 * sent  # eight standard deviations each way
    assert sent - received <= lost <= sent - received + 100  # some final datagrams may be lost, too


def test_testbeds_share_nothing() -> None:
    """Two testbeds use the same addresses at the same time, and the machine sees no interface of either testbed."""
    before = interfaces()
    with testbed.up(made()) as one, testbed.up(made()) as other:
        address = one.address("b", "eth0")
        assert address == other.address("b", "eth0") and set(one.namespaces).isdisjoint(other.namespaces)
        connect = f"import socket; socket.create_connection(({address!r}, 7001), timeout=5)"
        with python(one, "b", str(TRAFFIC), "receive", address, "7001"):
            with python(other, "a", "-c", connect) as refused:
                assert refused.wait() == 1
            code = (
                f"import socket, time\nwhile True:\n try: {connect[15:]}; break\n except ConnectionRefusedError: pass"
            )
            with python(one, "a", "-c", code) as accepted:
                assert accepted.wait() == 0
        assert interfaces() == before
        outside = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 9))"
        with python(one, "a", "-c", outside) as unreachable:
            assert unreachable.wait() == 1
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert one.id not in left and other.id not in left


def interfaces() -> list[str]:
    return sorted(path.name for path in Path("/sys/class/net").iterdir())
