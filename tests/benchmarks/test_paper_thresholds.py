"""MLT's appendix B, redone: the losses of a queue with two thresholds."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.benchmarks.paper_scripts import printed, script


@pytest.fixture(scope="module")
def thresholds() -> ModuleType:
    loaded = script("thresholds")
    loaded.__dict__.update(REPLICAS=1500, WARM_UP=300, EVENTS=300)
    return loaded


@pytest.mark.parametrize("load", [0.7, 1.2])
def test_the_script_draws_what_a_queue_with_two_thresholds_loses(thresholds: ModuleType, load: float) -> None:
    row = thresholds.row(load)
    assert row.ours == pytest.approx(row.drawn, abs=0.015)
    assert row.split[0] == pytest.approx(load**4 / sum(load**n for n in range(5)))  # M/M/1/m as a sum, m = θS
    assert row.split[1] == row.printed[1] == pytest.approx(load**8 / sum(load**n for n in range(9)))


def test_the_script_shows_that_the_printed_formula_is_no_share(thresholds: ModuleType) -> None:
    assert thresholds.row(0.9).printed[0] > 1
    assert thresholds.row(1.2).printed[0] < 0


def test_the_script_prints_and_writes(
    thresholds: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, _ = printed(thresholds, tmp_path, capsys)
    assert all(f"\n{load:.2f}  " in text for load in thresholds.LOADS)
