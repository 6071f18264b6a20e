"""The rate of a testbed's switch, and the time that it adds to a packet, beside the kernel's bridges. Needs root.

    .venv/bin/python benchmarks/packet_switch.py

Between two hosts: the rate of TCP on links of several rates and without a limit, and round trips of single datagrams.
Then three hosts send to one, more than its link takes: which packets are dropped, with and without a threshold.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator

from jaxcomm import testbed
from jaxcomm.testbed import Layout, Testbed
from jaxcomm.testbed.processes import TRAFFIC

SECONDS = 4.0
UNLIMITED = 10_000.0  # Mbit/s
ROUNDS = 3

ECHO = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((sys.argv[1], 7000)); print("ready", flush=True)
while True: data, peer = s.recvfrom(9000); s.sendto(data, peer)
"""
CALL = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((sys.argv[1], 7000))
for _ in range(3000):
    begin = time.perf_counter(); s.send(b"?"); s.recv(9000); print(1e6 * (time.perf_counter() - begin))
"""

TAKE = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((sys.argv[1], 7000)); print("ready", flush=True)
while True: s.recv(9000)
"""
FLOOD = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((sys.argv[1], 7000)); end = time.monotonic() + 3
while time.monotonic() < end:
    for mark in (0, 2): s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, mark); s.send(bytes(1400))
"""


def main() -> None:
    print("TCP, the best of three, Mbit/s (of what headers leave of the rate): bridges, switch, its packets a second")
    for mbit, mtu in ((100, 1500), (200, 1500), (500, 1500), (500, 9000), (UNLIMITED, 1500), (UNLIMITED, 9000)):
        payload = mbit * (mtu - 52) / (mtu + 14)
        rates = {with_switch: max(tcp(mbit, mtu, with_switch) for _ in range(ROUNDS)) for with_switch in (False, True)}
        bridges, (switch, packets) = rates[False][0], rates[True]
        shares = "" if mbit == UNLIMITED else f" ({bridges / payload:.1%}), ({switch / payload:.1%})"
        print(f"{mbit:g} Mbit/s, MTU {mtu}: {bridges:.1f}, {switch:.1f}{shares}, {packets:.0f}")
    for mbit in (100, 1000):
        times = [round_trips(mbit, with_switch) for with_switch in (False, True)]
        words = (f"{statistics.median(each):.0f}, {statistics.quantiles(each, n=100)[-1]:.0f}" for each in times)
        print(f"round trip of a byte at {mbit} Mbit/s, µs, median and p99: bridges {', switch '.join(words)}")
    for mbit in (100, 200):
        for threshold in (65536, 30000):
            print(f"three to one at {mbit} Mbit/s, threshold {threshold} of 65536 bytes: {incast(mbit, threshold)}")


def tcp(mbit: float, mtu: int, with_switch: bool) -> tuple[float, float]:
    """Mbit/s of payload, and packets a second in both directions."""
    with testbed.up(hosts(mbit, mtu, with_switch)) as layout:
        end = (layout.address("b", "eth0"), "7001")
        with (
            started(layout, "b", str(TRAFFIC), "receive", *end) as receiver,
            started(layout, "a", str(TRAFFIC), "send", *end, str(SECONDS)) as sender,
        ):
            sender.wait()
            count, seconds = map(float, re.findall(r"[\d.]+", receiver.communicate()[0]))
        packets = sum(queue.packets for queue in testbed.queue_counters(layout))
    return count * 8e-6 / seconds, packets / seconds


def round_trips(mbit: float, with_switch: bool) -> list[float]:
    """Microseconds of each round trip."""
    with testbed.up(hosts(mbit, 1500, with_switch)) as layout:
        address = layout.address("b", "eth0")
        with started(layout, "b", "-c", ECHO, address) as echo:
            assert echo.stdout is not None and echo.stdout.readline()
            with started(layout, "a", "-c", CALL, address) as caller:
                return [float(line) for line in caller.communicate()[0].split()]


def incast(mbit: float, threshold: int) -> str:
    """Drops if half of the packets are important, and the time in the queue of the packets that pass."""
    fields = {"switch": {"buffer_bytes": 65536, "threshold_bytes": threshold}, "hosts": [{"name": n} for n in "abcd"]}
    wanted = Testbed.model_validate({"rails": [{"name": "eth0", "mbit": mbit}], **fields})
    with testbed.up(wanted) as layout, contextlib.ExitStack() as stack:
        address = layout.address("d", "eth0")
        receiver = stack.enter_context(started(layout, "d", "-c", TAKE, address))
        assert receiver.stdout is not None and receiver.stdout.readline()
        for sender in [stack.enter_context(started(layout, host, "-c", FLOOD, address)) for host in "abc"]:
            sender.wait()
        (queue,) = (each for each in testbed.queue_counters(layout) if each.host == "d")
    drops = queue.important_drops + queue.ordinary_drops
    offered = queue.packets + drops
    return (
        f"{drops / offered:.1%} of packets dropped, {queue.important_drops / drops:.1%} of those important; "
        f"in the queue {1e3 * queue.mean_s:.2f} ms, p99 {1e3 * queue.p99_s:.2f}"
    )


def hosts(mbit: float, mtu: int, with_switch: bool) -> Testbed:
    return Testbed.model_validate(
        {
            "mtu": mtu,
            "switch": {} if with_switch else None,
            "rails": [{"name": "eth0", "mbit": mbit}],
            "hosts": [{"name": "a"}, {"name": "b"}],
        }
    )


@contextlib.contextmanager
def started(layout: Layout, host: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    own = next(each for each in testbed.environments(layout) if each["JAXCOMM_HOST"] == host)
    command = testbed.on_its_host([sys.executable, "-I", *words])
    with subprocess.Popen(command, env=os.environ | own, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    main()
