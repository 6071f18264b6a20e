"""Call sites whose times the recipes print, by made-up statistics and in a whole run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.recipes.recipe_scripts import RECIPES, run

pytest.importorskip("flax", reason="the recipes' models are Flax's")
pytest.importorskip("orbax.checkpoint", reason="the recipes' checkpoints are Orbax's")
pytest.importorskip("sklearn", reason="the recipes train on scikit-learn's digits")
pytest.importorskip("tensorboardX", reason="the recipes write for TensorBoard")


def site(plan: str, nbytes: int, after_ms: float) -> dict[str, Any]:
    """A record of three sums to which rank 1 comes last."""
    record = {"plan": plan, "bytes": nbytes, "calls": 3, "arrivals": [[0.0, 0.02]] * 3}
    return record | {"after_arrival_s": [after_ms / 1e3] * 3}


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(RECIPES)


@pytest.mark.parametrize("usual", ["ring", "direct"])
def test_late_rank_compares_the_gradients_of_both_ways(recipes: None, usual: str) -> None:
    """Between hosts large sums run a ring without a plan, and the loss, a small one, the direct schedule."""
    import late_rank

    loss, planned_loss = site("direct", 4, 1.0), site("01234567", 4, 2.0)
    gradients, planned = site(usual, 2**24, 30.0), site("01234567", 2**24, 20.0)
    found = late_rank.without_and_under([gradients, loss, planned, planned_loss], "01234567")
    assert found == (gradients, planned)
    assert [late_rank.lateness_ms(each)[1] for each in found] == pytest.approx([30.0, 20.0])


def test_two_racks_times_the_averages_in_groups(recipes: None) -> None:
    import two_racks

    sites = [site("groups", 64, 1.0), site("groups", 2**20, 5.0), site("ring", 2**24, 9.0)]
    assert two_racks.measured_ms(sites) == pytest.approx({"measured_ms": 5.0})
    assert two_racks.measured_ms(sites[2:]) == {}, "on GPUs the averages are jax.lax's, and nothing is recorded"


@pytest.mark.slow
def test_two_racks_prints_measured_times(tmp_path: Path) -> None:
    printed = run(RECIPES / "two_racks.py", ["--steps=8", "--every=4", f"--out={tmp_path / 'run'}"], tmp_path)
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        times = [float(row["measured_ms"]) for row in csv.DictReader(file)]
    assert len(times) == 2 and min(times) > 0
    assert printed.count("measured_ms") == 2
