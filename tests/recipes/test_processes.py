"""Recipes over several processes: the metrics of one process with as many workers, and a late worker that is found."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

import jaxcomm
from tests.recipes.recipe_scripts import RECIPES, run

pytest.importorskip("flax", reason="the recipes' models are Flax's")
pytest.importorskip("orbax.checkpoint", reason="the recipes' checkpoints are Orbax's")
pytest.importorskip("sklearn", reason="the recipes train on scikit-learn's digits")
pytest.importorskip("tensorboardX", reason="the recipes write for TensorBoard")

pytestmark = pytest.mark.slow

TWO_BY_TWO = ("-n", "2", "--devices-per-process", "2")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.mark.parametrize("words", [["images.py"], ["sharded.py", "--units=64"]], ids=["images", "sharded"])
def test_two_processes_train_as_one_and_go_on(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    script, *own = words
    several, one = tmp_path / "several", tmp_path / "one"
    for steps in (4, 8):
        given = [*own, "--every=4", f"--steps={steps}", f"--out={several}"]
        printed = run(RECIPES / script, given, cache, launch=TWO_BY_TWO)
        assert f"on 4 cpu workers by jaxcomm, from step {steps - 4}: " in printed
        assert printed.count(f"step {steps}/{steps} ") == 1
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    run(RECIPES / script, [*own, "--every=4", "--steps=8", f"--out={one}"], cache)
    assert (several / "metrics.csv").read_text() == (one / "metrics.csv").read_text()


def test_a_process_that_is_late_is_found_and_planned_for(tmp_path: Path, cache: Path) -> None:
    words = ["--units=128", "--late=rank=2,ms=200", "--steps=16", "--every=8", "--plan_at=8"]
    printed = run(RECIPES / "late_rank.py", [*words, f"--out={tmp_path}"], cache, launch=TWO_BY_TWO)
    assert "worker 2 comes last in" in printed
    assert float(re.search(r"parameters differ by at most (\S+)", printed)[1]) < 1e-6
    assert jaxcomm.plan.load(tmp_path / "plan.json", ranks=4).roles["straggler"] == 2
    with (tmp_path / "metrics.csv").open(newline="") as file:
        assert [row["planned"] for row in csv.DictReader(file)] == ["0.0", "1.0"]


def test_a_late_host_of_a_testbed_is_found(tmp_path: Path, cache: Path) -> None:
    script = tmp_path / "on_its_host.py"  # gives each process what a testbed's file gives it
    script.write_text(
        "import os, runpy, sys\n"
        'os.environ["JAXCOMM_TESTBED_DELAY_S"] = "0.2" if os.environ["SLURM_PROCID"] == "1" else "0"\n'
        f"sys.path.insert(0, {str(RECIPES)!r})\n"
        'runpy.run_path(sys.path[0] + "/late_rank.py", run_name="__main__")\n'
    )
    words = ["--units=64", "--late=rank=0,ms=900", "--steps=8", "--every=8", "--plan_at=8"]
    launch = ("-n", "2", "--devices-per-process", "1")
    printed = run(script, [*words, f"--out={tmp_path / 'run'}"], cache, launch=launch)
    assert "worker 1 comes last in" in printed
