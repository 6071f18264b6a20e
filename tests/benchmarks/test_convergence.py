"""The convergence study: it goes on where it was interrupted, and its table says what its runs say."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from tests.recipes.recipe_scripts import ROOT, kill_after, run, start

for package in ("flax", "sklearn", "orbax.checkpoint", "tensorboardX"):
    pytest.importorskip(package, reason="the study trains the recipes' tasks")

SCRIPT = ROOT / "benchmarks" / "convergence.py"
# Written by the command with --tasks digits --schemes ds-sync --seeds 3 --steps 6 --rates 0.05.
RUNS = Path(__file__).parents[1] / "fixtures" / "convergence.jsonl"
T_OF_3 = 4.302652730  # 97.5 % quantile of Student's t with two degrees of freedom, from a printed table


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPT.parent)


@pytest.fixture
def report(benchmarks):
    import convergence_report

    return convergence_report


@pytest.mark.slow
def test_an_interrupted_study_goes_on(tmp_path):
    words = [f"--out={tmp_path}", "--tasks=digits", "--schemes=ds-sync", "--seeds=2", "--steps=3", "--rates=0.05"]
    results = tmp_path / "results.jsonl"
    kill_after(start(SCRIPT, words, tmp_path / "compiled"), results, 3)
    before = results.read_text()
    with results.open("a") as file:
        file.write('{"task": "dig')  # as an interruption may leave it
    printed = run(SCRIPT, words, tmp_path / "compiled")
    assert "digits, learning rate: 2 runs, 2 of them done before" in printed
    lines = results.read_text()
    assert lines.startswith(before)
    runs = [json.loads(line) for line in lines.splitlines()]
    assert all(each["measured"] == [2, 3] for each in runs)
    assert sorted((each["scheme"], each["seed"]) for each in runs) == [
        *(("bsp", seed) for seed in (0, 1, 1000, 1001)),
        *(("ds-sync", seed) for seed in (0, 1)),
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"compiled", "results.jsonl", "table.md", "digits.svg"}


def test_the_table_says_what_the_runs_say(report, tmp_path):
    runs = [json.loads(line) for line in RUNS.read_text().splitlines()]
    report.write(runs, tmp_path, [1000, 1001])
    table = (tmp_path / "table.md").read_text()
    lines = [[cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()]
    cells = {line[0]: line[1:] for line in lines if len(line) == 6}
    pairs = {(line[0], line[1]): line[2] for line in lines if len(line) == 3}

    def curves(scheme, name):
        return np.array([each[name] for each in runs if each["scheme"] == scheme and each["seed"] < 1000])

    bsp = curves("bsp", "accuracy")
    half = T_OF_3 * bsp[:, -1].std(ddof=1) / np.sqrt(3)
    middle, target = bsp[:, -1].mean(), bsp[:, 1].mean()
    assert f"{middle - half:.4f} to {middle + half:.4f}" in table
    assert f"Target: {target:.4f}" in table
    rows = {"BSP": bsp, "BSP, SWA": curves("bsp", "swa"), "DS-Sync": curves("ds-sync", "accuracy")}
    for name, values in rows.items():
        final = values[:, -1]
        where = "inside" if abs(final.mean() - middle) <= half else "better" if final.mean() > middle else "worse"
        assert cells[name][:2] == ["3", f"{final.mean():.4f} ± {final.std(ddof=1):.4f}"]
        assert cells[name][3] == where
        reached = [2 * (1 + np.argmax(curve >= target)) for curve in values if (curve >= target).any()]
        share = "" if len(reached) == 3 else f" ({len(reached)} of 3 seeds)"
        assert cells[name][4] == f"{np.mean(reached):.0f}{share}"

    def paired(one, other):
        differences = one[:, -1] - other[:, -1]
        return f"{differences.mean():+.4f} ± {T_OF_3 * differences.std(ddof=1) / np.sqrt(3):.4f}"

    assert cells["DS-Sync"][2] == paired(rows["DS-Sync"], bsp)
    assert pairs["DS-Sync, SWA", "BSP, SWA"] == paired(curves("ds-sync", "swa"), rows["BSP, SWA"])
    assert "<svg" in (tmp_path / "digits.svg").read_text()


def test_a_metric_that_falls_is_better_below(report):
    runs = [
        {"metric": "nats", "rate": rate, "nats": [3.0, last]} for rate, last in ((0.1, 2.5), (0.2, 2.0), (0.2, 2.6))
    ]
    assert report.best_rate(runs) == 0.2
    assert report.place(1.0, 2.0, 0.5, "nats") == "better"
    assert report.place(2.6, 2.0, 0.5, "nats") == "worse"
    rows = [report.Curves(report.SERIES[0], {0: [3.0, 2.1, 1.9], 1: [3.0, 2.5, 2.2]})]
    assert report.steps_to(2.0, rows[0], [10, 20, 30], "nats") == "30 (1 of 2 seeds)"


@pytest.mark.parametrize("alike", [False, True])
def test_what_is_lost_at_random_counts_as_zero(benchmarks, alike):
    import convergence

    segments, elements = 400, convergence.SEGMENT // 4
    mean = convergence.zero_filled(0.3, alike=alike).update

    @partial(jax.shard_map, mesh=convergence.devices.mesh(), in_specs=P(), out_specs=P(), check_vma=False)
    def two_steps(x):
        first, step = mean(x, jnp.uint32(0))
        return first, mean(x, step)[0]

    first, second = (np.asarray(each) for each in jax.jit(two_steps)(jnp.ones((segments, elements))))
    assert (first == first[:, :1]).all(), "whole segments are lost"
    assert {*np.unique(first)} <= ({0, 1} if alike else {kept / 8 for kept in range(9)})
    assert first.mean() == pytest.approx(0.7, abs=5 * np.sqrt(0.3 * 0.7 / segments))
    assert (first != second).any()
