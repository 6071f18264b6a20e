"""Packets lost between hosts: each packet counts once, foreign packets never. A job's profile, plan and calls."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxcomm import plan, profile
from jaxcomm.distributed.rails.rail_ends import RailEnd
from jaxcomm.measure import lost_packets
from tests.measure.test_profile_job import launch

END = RailEnd("", "", "127.0.0.1", 0, 0, "")
TOKEN = b"t" * 16

# Each process counts as a separate host.
PROFILE = """
import os, sys
os.environ["JAXCOMM_HOST"] = "host" + os.environ["SLURM_PROCID"]
from jaxcomm.cli import main
assert main(["profile", "--sizes", "1KiB,64KiB", "--seconds", "1", "--steps", "4", "--out", "profile.json"]) == 0
"""
RUN = """
import os, sys
os.environ["JAXCOMM_HOST"] = "host" + os.environ["SLURM_PROCID"]
import jax, jaxcomm, numpy as np
from jaxcomm.distributed.connect import members
jax.distributed.initialize()
jaxcomm.init(plan=sys.argv[1])
mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
split = jax.NamedSharding(mesh, jax.P("data"))
x = jax.make_array_from_callback((2, 1000), split, lambda at: np.full((1, 1000), at[0].start + 1, np.int32))
step = jax.shard_map(lambda x: jaxcomm.psum(x, "data"), mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P(),
                     check_vma=False)
assert (np.asarray(jax.jit(step)(x).addressable_shards[0].data) == 3).all()
print("over", *filter(None, members.connected().transports))
jaxcomm.init(plan=sys.argv[2])
"""
BENCH = """
import os, sys
os.environ["JAXCOMM_HOST"] = "host" + os.environ["SLURM_PROCID"]
from jaxcomm.cli import main
assert main(["bench", "--plan", sys.argv[1], "--sizes", "1KiB", "--rounds", "1"]) == 0
from jaxcomm.distributed.connect import members
print("over", *filter(None, members.connected().transports))
"""


class Clock:
    """Replaces the module `time`. Sleeping takes exactly the requested time, plus any of `pauses`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now, self.pauses = 0.0, {}
        monkeypatch.setattr(lost_packets, "_SECONDS", seconds)
        monkeypatch.setattr(lost_packets, "time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.pauses.pop(round(self.now, 3), 0.0)


def test_each_packet_counts_once_and_strangers_never(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, 0.2)
    with lost_packets._receiver(END) as receiver:
        address = receiver.getsockname()[:2]
        counter = lost_packets._Counter(receiver)
        token = bytes.fromhex(counter.end[2])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for each in (token, b"x" * 16):
                packet = lost_packets._HEADER.pack(each, 7)
                stranger.sendto(packet, address)  # a duplicate with the right token, and a packet with a foreign token
                stranger.sendto(packet[:-1], address)
        assert lost_packets._send(END, address, token, 1e9) == 400
        deadline = time.monotonic() + 20
        while len(counter._numbers) + counter._overflown < 400 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert counter.stop() == 400


def test_it_takes_a_tenth_of_a_slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, 0.095)
    with lost_packets._receiver(END) as receiver:
        assert lost_packets._send(END, receiver.getsockname()[:2], TOKEN, 1.4e6) == 10
        assert lost_packets._send(END, receiver.getsockname()[:2], TOKEN, 1.0) == 1


def test_what_a_pause_has_missed_is_not_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 0.6)
    clock.pauses = {0.1: 0.3}
    with lost_packets._receiver(END) as receiver:
        sent = lost_packets._send(END, receiver.getsockname()[:2], TOKEN, 1e9)
    assert clock.pauses == {} and 600 <= sent <= 606  # a run without the pause sends 1 200


def test_few_lost_packets_are_chance() -> None:
    assert lost_packets.LostPackets("a", "b", 1000, 9).rate == 0
    assert lost_packets.LostPackets("a", "b", 1000, 10).rate == 0.01


@pytest.mark.slow
def test_a_job_measures_plans_and_carries_out(tmp_path: Path) -> None:
    (tmp_path / "profile.py").write_text(PROFILE)
    done = launch(tmp_path, 2, "profile.py")
    assert done.returncode == 0, done.stderr
    found = profile.load(tmp_path / "profile.json")
    assert found.packet_loss and found.packet_loss.rate < 1e-3
    assert re.search(rf"lost packets +{found.packet_loss.rate:.2%}, on the worst path between hosts", done.stdout)
    files = []
    for rate, transport in ((0.01, "udp"), (0.0, "tcp")):
        losing = found.model_copy(update={"packet_loss": profile.PacketLoss(rate=rate)})
        profile.save(losing, tmp_path / "profile.json")
        made = subprocess.run(
            [sys.executable, "-m", "jaxcomm.cli", "plan", "profile.json", "--out", f"{transport}.json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert f"between hosts over {transport.upper()}: " in made.stdout, made.stderr
        chosen = plan.load(tmp_path / f"{transport}.json").transport
        assert chosen and chosen.protocol == transport
        files.append(f"{transport}.json")
    (tmp_path / "run.py").write_text(RUN)
    for own, other, stays in ((*files, "UDP"), (*reversed(files), "TCP")):
        done = launch(tmp_path, 2, "run.py", own, other)
        assert done.returncode == 0, done.stderr
        assert [line for line in sorted(done.stdout.splitlines()) if "over" in line] == [
            f"[{process}] over {stays.lower()}" for process in (0, 1)
        ]
        assert done.stderr.count(f"hosts keep using {stays} instead of the plan's choice") == 2
    (tmp_path / "bench.py").write_text(BENCH)
    done = launch(tmp_path, 2, "bench.py", "udp.json")
    assert done.stdout.count("] over udp") == 2, done.stderr
