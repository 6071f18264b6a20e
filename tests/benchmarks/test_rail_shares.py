"""The comparison of ways over rails: its share table, its errors, and what it says of medians."""

from __future__ import annotations

import random
import statistics

import pytest

from tests.recipes.recipe_scripts import ROOT


@pytest.fixture(scope="module")
def rail_shares():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        import rail_shares

        return rail_shares


def test_each_way_has_its_shares_at_a_size_of_its_own(rail_shares):
    ways = {"both": {"eth0": 512, "eth1": 512}, "eth0 alone": {"eth0": 1024}}
    found = rail_shares.share_table([1 << 20, 1024], ways)
    assert [low for low, _ in found] == [0, 1024 + 64, 1 << 20, (1 << 20) + 64]
    assert [shares for _, shares in found] == [*ways.values()] * 2


def test_the_error_is_that_of_medians(rail_shares):
    drawn = random.Random(0)
    medians = [rail_shares.median(sorted(drawn.gauss(1, 0.1) for _ in range(100))) for _ in range(400)]
    spread = statistics.stdev(each.seconds for each in medians)
    assert statistics.mean(each.error for each in medians) == pytest.approx(spread, rel=0.15)
    assert rail_shares.median([2.0]) == (2.0, 0.0)


def test_ways_are_compared_with_the_rails_alone(rail_shares):
    times = {
        "by their rates": (0.5, 0.01),
        "eth0 alone": (0.6, 0.0),
        "eth1 alone": (2.4, 0.0),
        "Gloo, MPTCP": (0.8, 0.0),
    }
    found = [row[2:] for row in rail_shares.rows({way: rail_shares.Median(*each) for way, each in times.items()})]
    assert found[0] == ["2.0%", "96.0%", "1.200"]  # the rails carry one buffer in 0.48 s together
    assert found[1] == ["0.0%", "80.0%", "1.000"]
    assert found[3] == ["0.0%", "60.0%", "0.750"]


def test_rails_together_carry_what_each_carries_alone(rail_shares):
    seconds = {"evenly": [9.0, 9.0], "eth0 alone": [1.0, 2.0], "eth1 alone": [4.0, 2.0]}
    assert rail_shares.together(seconds) == pytest.approx([0.8, 1.0])
