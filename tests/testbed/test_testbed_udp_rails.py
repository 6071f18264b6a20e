"""Rails over UDP that are cut in mid-transfer: the sums are exact, and each rail is taken back. Root."""

from __future__ import annotations

import importlib
import random
from pathlib import Path

import pytest

from jaxcomm import testbed
from jaxcomm.testbed import Testbed

pytestmark = [pytest.mark.root, pytest.mark.slow]

TWO_HOSTS = Testbed.model_validate(
    {"rails": [{"name": name, "mbit": 250} for name in ("eth0", "eth1")], "hosts": [{"name": name} for name in "ab"]}
)


def test_a_path_that_is_cut_fails_over_and_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXCOMM_TRANSPORT", "udp")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    rail_cuts = importlib.import_module("rail_cuts")
    with testbed.up(TWO_HOSTS) as layout:
        job = rail_cuts.Job(layout, tmp_path, mib=16)
        try:
            assert rail_cuts.wait(job, rail_cuts.START_S, "calls"), job.lines()
            drawn = random.Random(1)
            happened = [rail_cuts.happen(layout, job, drawn, kind) for kind in ("silent", "down")]
        finally:
            job.finish()
        lines, calls = job.lines(), job.calls()
    assert all(each.noticed is not None and each.back is not None for each in happened), (happened, lines)
    assert all(own[-1] == "@end" for own in lines), lines
    assert all(call.is_right for own in calls for call in own)
