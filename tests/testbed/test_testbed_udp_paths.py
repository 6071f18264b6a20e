"""Several UDP paths over a fabric of spines, one of which fails: the sums stay exact and do not stall. Needs root."""

from __future__ import annotations

import importlib
import statistics
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = [pytest.mark.root, pytest.mark.slow]

SUMS = 6


def test_packets_use_all_spines_and_avoid_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.syspath_prepend(BENCHMARKS)
    benchmark = importlib.import_module("udp_paths")
    found = benchmark.sums_of(benchmark.KINDS["UDP, 24 paths"], mbit=40.0, mib=4, sums=SUMS)
    assert [len(found.whole), len(found.failed)] == [SUMS, SUMS], found
    used = [spine.packets > 1000 for spine in found.spines]
    assert sum(used) >= 3, found  # a spine has no path once in 100 runs, two spines have none far less often
    assert found.spines[benchmark.FAILED].random_losses > 0, found
    assert statistics.median(found.failed) < 3 * statistics.median(found.whole), found
