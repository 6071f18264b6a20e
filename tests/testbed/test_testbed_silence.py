"""If a host falls silent on all rails, or loses only long packets, the other hosts' calls fail soon.

Over TCP and UDP. The error names the reason. Needs root."""

from __future__ import annotations

import importlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jaxcomm import testbed
from jaxcomm.testbed import Layout, Testbed, network
from jaxcomm.testbed.schema import Cut

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SOON_S = 27.0  # less than the deadline of a call
pytestmark = [pytest.mark.root, pytest.mark.slow]


def two_hosts(rails: int) -> Testbed:
    return Testbed.model_validate(
        {
            "rails": [{"name": f"eth{rail}", "mbit": 250} for rail in range(rails)],
            "hosts": [{"name": name} for name in "ab"],
        }
    )


def silence(layout: Layout) -> Iterator[network.Command]:
    for rail in layout.testbed.rails:
        yield from network.cut(layout, Cut(host="b", rail=rail.name, at_s=0, kind="silent"))


def loss_of_long(layout: Layout) -> Iterator[network.Command]:
    for rail in layout.testbed.rails:
        hook = f'type filter hook ingress device "{rail.name}" priority 0; policy accept;'
        chain = f"netdev long {rail.name}"
        rule = f"add rule {chain} meta length > 1000 drop"
        nft = f"add table netdev long; add chain {chain} {{ {hook} }}; {rule}"
        yield network.within(layout.namespace("b"), "nft", nft)


@pytest.mark.parametrize("transport", ["tcp", "udp"])
@pytest.mark.parametrize(
    ("cut", "rails", "words"),
    [(silence, 2, "its host has not answered for 10.0 s"), (loss_of_long, 1, "on the path the same MTU")],
)
def test_a_silent_host_is_gone(
    transport: str,
    cut: Callable[[Layout], Iterator[network.Command]],
    rails: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAXCOMM_TRANSPORT", transport)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.syspath_prepend(BENCHMARKS)
    rail_cuts = importlib.import_module("rail_cuts")
    with testbed.up(two_hosts(rails)) as layout:
        job = rail_cuts.Job(layout, tmp_path, mib=1)
        try:
            assert rail_cuts.wait(job, rail_cuts.START_S, "calls"), job.lines()
            for command in cut(layout):
                subprocess.run(command, check=True)
            begin = time.monotonic()
            while job.is_running() and time.monotonic() < begin + SOON_S:
                time.sleep(0.1)
            took = time.monotonic() - begin
        finally:
            job.finish()
        printed = "\n".join(line for own in job.lines() for line in own)
    assert took < SOON_S, printed
    assert words in printed, printed
    assert rails == 1 or "is gone on rail eth" in printed, printed
