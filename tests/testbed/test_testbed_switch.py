"""The packet switch of a testbed: delivered packets, the order of drops, and the report. Needs root."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from jaxcomm import testbed
from jaxcomm.cli import main
from jaxcomm.errors import JaxcommError
from jaxcomm.testbed import LinkState, events
from tests.cli import documents
from tests.testbed.test_testbed_network import ECHO, PING, first_line, made, mbit, python

pytestmark = pytest.mark.root

THREE = [{"name": "a"}, {"name": "b"}, {"name": "c"}]

RECEIVE = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind((sys.argv[1], 7000)); print("ready", flush=True)
names, left = [], int(sys.argv[2])
while left: names.append(s.recv(2000)[:1].decode()); left -= names[-1] != "o"
print(*names, flush=True)
"""
SEND = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def send(name, priority, important, to=sys.argv[1]):
    s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, priority << 5 | 2 * important); s.sendto(name * 1000, (to, 7000))
send(b"-", 0, True)  # which is on the link while the others come
for _ in range(30): send(b"o", 0, False); send(b"i", 0, True)
for _ in range(3): send(b"p", 7, True)
send(b"e", 0, True, sys.argv[2])  # behind all that
"""
CALL = """
import os, socket
a, b = ((f"10.77.0.{i}", 7000) for i in (1, 2))
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if os.environ["JAXCOMM_HOST"] == "b":
    s.bind(b); _, peer = s.recvfrom(2000); s.sendto(b"!" * 100, peer)
else:
    s.settimeout(0.1); answer = None
    while answer is None:
        s.sendto(b"?" * 1000, b)
        try: answer = s.recv(2000)
        except TimeoutError: pass
"""


def test_ordinary_packets_are_dropped_first_and_the_report_says_so() -> None:
    wanted = made(hosts=THREE, switch={"buffer_bytes": 65536, "threshold_bytes": 12000})
    with testbed.up(wanted) as layout:
        b, c = (layout.address(host, "eth0") for host in "bc")
        testbed.set_link(layout, LinkState("c", "eth0", 1e-6, 0.0))  # a packet takes hours
        with python(layout, "b", "-c", RECEIVE, b, "1") as end, python(layout, "c", "-c", RECEIVE, c, "34") as receiver:
            assert first_line(end) == first_line(receiver) == "ready"
            with python(layout, "a", "-c", SEND, c, b):
                assert first_line(end) == "e"
            testbed.set_link(layout, LinkState("c", "eth0", 100.0, 0.0))
            received = first_line(receiver).split()
        queues = {queue.priority: queue for queue in testbed.queue_counters(layout) if queue.host == "c"}
        (link,) = (link for link in testbed.counters(layout) if link.host == "c")
    assert received == ["-", *"ppp", *"oi" * 5, *"i" * 25]  # 12000 bytes are 11 packets, with the packet on the link
    assert list(queues) == [7, 0]
    assert (queues[0].packets, queues[0].ordinary_drops, queues[0].important_drops) == (36, 25, 0)
    assert (queues[7].packets, queues[7].ordinary_drops, queues[7].important_drops) == (3, 0, 0)
    assert link.queue_drops == 25 and link.received_bytes == queues[0].bytes + queues[7].bytes == 39 * 1042
    assert 0 < queues[7].mean_s < queues[0].mean_s < queues[0].max_s and queues[0].p99_s <= queues[0].max_s


def test_links_keep_to_their_rates_and_are_cut_and_repaired() -> None:
    cuts = [{"host": "b", "at_s": at, "repaired_s": at + 1, "kind": kind} for at, kind in enumerate(("silent", "down"))]
    with testbed.up(made(cuts=cuts, switch={})) as layout:
        assert 1 < mbit(layout, "a", "b") < 103
        address = layout.address("b", "eth0")
        with python(layout, "b", "-c", ECHO, address), python(layout, "a", "-c", PING, address) as ping:
            assert first_line(ping) == "reached"
            for event in testbed.timeline(layout):
                events.carry_out(layout, event)
                ends = event.link is not None  # the last event at this time
                assert not ends or first_line(ping) == ("lost" if "cut" in event.text else "reached")
    with pytest.raises(JaxcommError, match=f"testbed {layout.id} has no switch"):
        testbed.queue_counters(layout)


def test_a_flow_crosses_one_spine_which_fails_and_is_repaired() -> None:
    racks = [{"name": "left"}, {"name": "right"}]
    spines = [
        {"name": name, "mbit": 50, "cuts": [{"at_s": 1 + 2 * i, "repaired_s": 2 + 2 * i}]}
        for i, name in enumerate(("s1", "s2"))
    ]
    hosts = [{"name": "a", "rack": "left"}, {"name": "b", "rack": "right"}]
    with testbed.up(made(hosts=hosts, racks=racks, spines=spines, switch={})) as layout:
        assert 1 < mbit(layout, "a", "b") < 52
        address = layout.address("b", "eth0")
        assert sum(each.packets for each in testbed.spine_counters(layout)) > 1000
        with python(layout, "b", "-c", ECHO, address), python(layout, "a", "-c", PING, address) as ping:
            assert first_line(ping) == "reached"
            before = testbed.spine_counters(layout)
            pairs = zip(before, spines_of(layout), strict=True)
            # The last packets of the connection that `mbit` closed may cross the other spine.
            used = [after.packets > early.packets + 20 for early, after in pairs]
            for event in testbed.timeline(layout):
                events.carry_out(layout, event)
                failed = event.spine is not None and used[["s1", "s2"].index(event.spine.spine)]
                assert not failed or first_line(ping) == ("lost" if "fails" in event.text else "reached")
        lost = [each.random_losses > 0 for each in testbed.spine_counters(layout)]
    assert lost == used and any(used)


def spines_of(layout: testbed.Layout) -> list[testbed.SpineCounters]:
    """The spines' counters after a moment in which the echo has passed in both directions."""
    time.sleep(0.3)
    return testbed.spine_counters(layout)


def test_a_run_prints_what_waited(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "switch.toml"
    file.write_text('[switch]\n[[rails]]\nname = "eth0"\nmbit = 200\n[[hosts]]\nname = "a"\n[[hosts]]\nname = "b"\n')
    words = ["testbed", "run", str(file), "--time-limit", "60", "--", sys.executable, "-I", "-c", CALL]
    assert main([*words[:3], "--json", *words[3:]]) == 0
    found = documents.document(capfd.readouterr().out)
    carried = {queue["host"]: queue["bytes"] for queue in found["queues"] if queue["priority"] == 0}
    assert carried == {"a": 142, "b": found["links"][0]["sent_bytes"]}  # ICMP errors have another priority
    assert main(words) == 0
    assert "packets that waited in the switch, by destination:\nhost  rail  priority  packets" in capfd.readouterr().out


def test_a_device_that_is_not_there_has_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxcomm.testbed.machine.build", lambda layout: list(testbed.build(layout))[:1])
    words = (
        r"device eth0 of jaxcomm-\w+-a: /run/netns/.*: No such file or directory\.\n  Cure: `jaxcomm testbed check`\."
    )
    with pytest.raises(JaxcommError, match=words), testbed.up(made(switch={})):
        pass
