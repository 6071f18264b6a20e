"""Times to a loss: when a training counts as there, and the ratios of two ways' times."""

from __future__ import annotations

import math

import pytest

from tests.recipes.recipe_scripts import ROOT


@pytest.fixture(scope="module")
def time_to_loss():
    pytest.importorskip("flax", reason="the recipes' training needs it")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "recipes")
        patch.syspath_prepend(ROOT / "benchmarks")
        import time_to_loss

        return time_to_loss


class Halving:
    """A training whose loss is 1 / (1 + steps)."""

    metric = "loss"

    def init(self, seed):
        return seed

    def steps(self, state, count):
        return state + count, None

    def score(self, state):
        return {"loss": 1 / (1 + state)}


def test_training_ends_at_first_measurement_below_target(time_to_loss):
    reached = time_to_loss.reach(Halving(), seed=0, target=0.05, every=10, most=100)
    assert (reached.steps, reached.loss) == (20, 1 / 21)
    assert reached.seconds > 0


def test_training_that_misses_its_target_has_no_time(time_to_loss):
    reached = time_to_loss.reach(Halving(), seed=0, target=0.0, every=10, most=30)
    assert (reached.seconds, reached.steps) == (None, 30)


def trained(time_to_loss, *seconds):
    return [time_to_loss.Reached(each, 10, 0.1, 0.5) for each in seconds]


def test_ratio_is_paired_by_seed_with_interval(time_to_loss):
    mean, low, high = time_to_loss.ratio(trained(time_to_loss, 1, 4), trained(time_to_loss, 2, 4))
    assert mean == pytest.approx(math.sqrt(0.5))
    error = 12.706 * math.log(2) / 2  # Student's t with one degree of freedom
    assert (low, high) == (
        pytest.approx(mean * math.exp(-error), rel=1e-3),
        pytest.approx(mean * math.exp(error), rel=1e-3),
    )
    assert time_to_loss.ratio(trained(time_to_loss, 1, 2, 3), trained(time_to_loss, 2, 4, 6)) == pytest.approx(
        [0.5] * 3
    )


def test_a_seed_without_time_leaves_no_ratio(time_to_loss):
    assert time_to_loss.ratio(trained(time_to_loss, 1, None), trained(time_to_loss, 2, 2)) is None
    found = {"first": trained(time_to_loss, 2, 2), "second": trained(time_to_loss, 1, None)}
    assert time_to_loss.summary(found)["second"]["ratio"] is None
    assert "1.0, –" in time_to_loss.report(found)
