"""Rails over UDP are cut in mid-transfer: the sums stay exact, and a repaired rail is used again. The loss of the only
rail is an error that names the reason. Needs root."""

from __future__ import annotations

import importlib
import random
import subprocess
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


def test_a_path_that_is_cut_fails_over_and_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXCOMM_TRANSPORT", "udp")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.syspath_prepend(BENCHMARKS)
    rail_cuts = importlib.import_module("rail_cuts")
    with testbed.up(TWO_HOSTS) as layout:
        job = rail_cuts.Job(layout, tmp_path, mib=16)
        try:
            assert rail_cuts.wait(job, rail_cuts.START_S, "calls"), job.lines()
            drawn = random.Random(1)
            happened = [rail_cuts.happen(layout, job, drawn, kind) for kind in ("silent", "down", "no-udp")]
        finally:
            job.finish()
        lines, calls = job.lines(), job.calls()
    assert all(each.noticed is not None and each.back is not None for each in happened), (happened, lines)
    assert all(own[-1] == "@end" for own in lines), lines
    assert all(call.is_right for own in calls for call in own)


def test_where_udp_does_not_pass_any_more_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXCOMM_TRANSPORT", "udp")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.syspath_prepend(BENCHMARKS)
    rail_cuts = importlib.import_module("rail_cuts")
    with testbed.up(TWO_HOSTS.model_copy(update={"rails": TWO_HOSTS.rails[:1]})) as layout:
        job = rail_cuts.Job(layout, tmp_path, mib=1)
        try:
            assert rail_cuts.wait(job, rail_cuts.START_S, "calls"), job.lines()
            for command in network.cut(layout, Cut(host="b", at_s=0, kind="no-udp")):
                subprocess.run(command, check=True)
            cut = time.monotonic()
            while job.is_running() and time.monotonic() < cut + 20:
                time.sleep(0.1)
            assert time.monotonic() < cut + 20, "it is not the deadline that ended the calls"
        finally:
            job.finish()
        printed = "\n".join(line for own in job.lines() for line in own)
        assert "UDP does not pass to 10." in printed, printed
        assert "while the process answers over TCP" in printed
