"""Priorities of packets over a testbed's switch: each layer's packets have their queue, and front layers end first."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = [pytest.mark.root, pytest.mark.slow]


def test_front_layers_end_first_and_unimportant_packets_are_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.syspath_prepend(BENCHMARKS)
    benchmark = importlib.import_module("mlt_mechanisms")
    settings = argparse.Namespace(mbit=40.0, kib=64, bound=0.1, paths=2, means=6)
    found = benchmark.launch("ABC", settings)
    _, lost, first, last = benchmark.columns(found)
    assert (lost <= 0.1).all(), found
    assert np.median(first) < np.median(last), found
    waited = {queue.priority: queue for queue in found.queues if queue.host == "left0"}
    assert set(waited) == set(range(8)), found
    assert all(queue.packets > 50 for queue in waited.values()), found
    assert waited[7].mean_s < waited[0].mean_s, found
