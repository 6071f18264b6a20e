"""A host's interface gets another address while a job runs: the rail is cut, and comes back at the new address. Needs
root."""

from __future__ import annotations

import importlib
import time
from pathlib import Path

import pytest

from jaxcomm import testbed
from jaxcomm.testbed import Testbed, network
from jaxcomm.testbed.schema import Cut

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = [pytest.mark.root, pytest.mark.slow]

TWO_HOSTS = Testbed.model_validate(
    {"rails": [{"name": name, "mbit": 250} for name in ("eth0", "eth1")], "hosts": [{"name": name} for name in "ab"]}
)


@pytest.mark.parametrize("transport", ["tcp", "udp"])
@pytest.mark.parametrize("host", ["a", "b"])  # of the process that listens, and of the one that connects
def test_a_rail_comes_back_at_the_new_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str, host: str
) -> None:
    monkeypatch.setenv("JAXCOMM_TRANSPORT", transport)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.syspath_prepend(BENCHMARKS)
    rail_cuts = importlib.import_module("rail_cuts")
    with testbed.up(TWO_HOSTS) as layout:
        job = rail_cuts.Job(layout, tmp_path, mib=4)
        try:
            assert rail_cuts.wait(job, rail_cuts.START_S, "calls"), job.lines()
            rail_cuts.carry_out(network.cut(layout, Cut(host=host, rail="eth1", at_s=0, kind="renumbered")))
            moved = f"the rail eth1 has the address {layout.second_address(host, 'eth1')} now"
            deadline = time.monotonic() + rail_cuts.BACK_S
            while not any(moved in line for own in job.lines() for line in own):
                assert time.monotonic() < deadline and job.is_running(), job.lines()
                time.sleep(0.1)
            assert rail_cuts.wait(job, rail_cuts.BACK_S, "back"), job.lines()
            before = len(job.calls()[0])
            rail_cuts.wait(job, 1)
        finally:
            job.finish()
        lines, calls = job.lines(), job.calls()
    assert sum(moved in line for own in lines for line in own) == 1, lines
    assert len(calls[0]) > before
    assert all(call.is_right for own in calls for call in own)
