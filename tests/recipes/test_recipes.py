"""Recipes as a user runs them: their files, their mistakes, and the same bits after an interruption."""

from __future__ import annotations

import csv
import itertools
import math
import pickle
import re
import shutil

import jax
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

import jaxcomm
from jaxcomm import planner, profile
from jaxcomm.errors import JaxcommError
from jaxcomm.profile import Link, Profile, Provenance
from jaxcomm.train import Drop
from tests.recipes.recipe_scripts import RECIPES, kill_after, run, start

pytest.importorskip("flax", reason="the recipes' models are Flax's")

pytestmark = pytest.mark.slow
ocp = pytest.importorskip("orbax.checkpoint", reason="the recipes' checkpoints are Orbax's")
pytest.importorskip("sklearn", reason="the recipes train on scikit-learn's digits")
pytest.importorskip("tensorboardX", reason="the recipes write for TensorBoard")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture
def recipes(monkeypatch):
    monkeypatch.syspath_prepend(RECIPES)


def rows(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def test_a_killed_run_ends_with_the_bits_of_an_uninterrupted_one(tmp_path, cache):
    words = ["--sync=ds-sync", "--steps=21", "--every=2"]
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    run(RECIPES / "images.py", [*words, f"--out={whole}"], cache)
    kill_after(start(RECIPES / "images.py", [*words, f"--out={halves}"], cache), halves / "metrics.csv", 4)
    before = (halves / "metrics.csv").read_text()
    printed = run(RECIPES / "images.py", [*words, f"--out={halves}"], cache)
    assert "from step 0" not in printed
    assert (halves / "metrics.csv").read_text() == (whole / "metrics.csv").read_text()
    assert before.splitlines()[:3] == (whole / "metrics.csv").read_text().splitlines()[:3]
    states = [ocp.StandardCheckpointer().restore(folder / "checkpoints/21/default") for folder in (whole, halves)]
    assert len(jax.tree.leaves(states[0])) > 20
    jax.tree.map(lambda one, other: np.testing.assert_array_equal(one, other, strict=True), *states)

    found = rows(whole)
    assert [row["step"] for row in found] == [*range(2, 21, 2), 21]
    assert found[0].keys() == {"step", "loss", "accuracy", "swa", "apart"}
    assert found[-1]["loss"] < found[0]["loss"] / 2
    assert found[-1]["accuracy"] > 0.9
    assert all(row["apart"] > 0 for row in found)
    assert [path.stat().st_size > 100 for path in (whole / "tensorboard").iterdir()] == [True]


def test_a_mistake_of_the_users_is_one_message_and_a_plan_of_ones_own_needs_no_two_racks(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=3")
    words = [f"--plan={tmp_path}/plan.json", f"--out={tmp_path}"]
    printed = run(RECIPES / "two_racks.py", words, cache, code=1)
    assert printed.startswith("error: ") and f"{tmp_path}/plan.json" in printed and "Traceback" not in printed


def test_the_language_model_learns_round_by_round(recipes, monkeypatch):
    import language

    monkeypatch.setattr(language, "TESTED", 32)

    def rounds():
        return [*itertools.islice(language.train(Drop(0.2), 3), 2)]

    first, last = found = rounds()
    assert last < first < math.log(128)
    assert found == rounds()


def test_a_folder_of_another_run_is_refused(recipes, tmp_path):
    from common.checkpoints import Checkpoints

    Checkpoints(tmp_path, {"sync": "ds-sync", "seed": 0})
    Checkpoints(tmp_path, {"seed": 0, "sync": "ds-sync"})
    with pytest.raises(JaxcommError, match=r"sync was 'ds-sync' and is 'bsp'.\n  Cure: name another folder with --out"):
        Checkpoints(tmp_path, {"sync": "bsp", "seed": 0})


def test_cifar10_is_read_alike_from_both_versions(recipes, tmp_path):
    from common import data

    random = np.random.default_rng(0)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    batches = {
        name: (random.integers(256, size=(7, 3072), dtype=np.uint8), random.integers(10, size=7)) for name in names
    }
    python, binary = tmp_path / "py", tmp_path / "bin"
    for folder in (python, binary):
        folder.mkdir()
    for name, (images, labels) in batches.items():
        (python / name).write_bytes(pickle.dumps({b"data": images, b"labels": labels.tolist()}))
        (binary / f"{name}.bin").write_bytes(np.column_stack([labels.astype(np.uint8), images]).tobytes())
    for one, other in zip(data.cifar10(python), data.cifar10(binary), strict=True):
        np.testing.assert_array_equal(one.images, other.images)
        np.testing.assert_array_equal(one.labels, other.labels)
    train, test = data.cifar10(binary)
    assert (train.images.shape, test.images.shape) == ((35, 32, 32, 3), (7, 32, 32, 3))
    red = batches["data_batch_1"][0][0, :1024].reshape(32, 32)
    np.testing.assert_array_equal(train.images[0, :, :, 0], red)
    with pytest.raises(FileNotFoundError, match="has neither data_batch_1"):
        data.cifar10(tmp_path)


def test_no_image_and_no_text_is_in_both_parts(recipes):
    from common import data

    train, test = data.digits()
    assert (len(train.labels), len(test.labels)) == (1347, 450)
    assert not {image.tobytes() for image in train.images} & {image.tobytes() for image in test.images}
    text = data.python_help()
    assert 0.09 < len(text.test) / (len(text.test) + len(text.train)) < 0.11
    assert "statement" in "".join(text.alphabet[place] for place in text.train)


@pytest.mark.parametrize(
    ("name", "workers", "message"),
    [
        ("ds-sync", 3, "there are 3 workers; two racks take"),
        ("racks", 3, "there are 3 workers; --sync racks halves them"),
        ("gosip", 8, "there is no synchronisation 'gosip'"),
    ],
)
def test_mistakes_are_named(recipes, name, workers, message):
    from common import synchronisation

    with pytest.raises(JaxcommError, match=message):
        synchronisation.by_name(name, workers)


def killed_before(step, folder, copy):
    """A copy of a run's folder as it was before its state after `step` was saved."""
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / f"checkpoints/{step}")
    return copy


def worker(folder, step):
    return ocp.StandardCheckpointer().restore(folder / f"checkpoints/{step}/default")["worker"]


def trained(folder, step):
    return {name: value for name, value in worker(folder, step).items() if name != "average"}


def same_bits(one, other):
    assert len(jax.tree.leaves(one)) > 12
    jax.tree.map(lambda one, other: np.testing.assert_array_equal(one, other, strict=True), one, other)


def test_a_run_finds_its_late_worker_and_goes_on_under_a_plan_for_it(tmp_path, cache):
    words = ["--units=128", "--late=rank=1,ms=60", "--steps=24", "--every=8", "--plan_at=8"]
    printed = run(RECIPES / "late_rank.py", [*words, f"--out={tmp_path / 'whole'}"], cache)
    assert "worker 1 comes last in" in printed
    assert float(re.search(r"parameters differ by at most (\S+)", printed)[1]) < 1e-6
    assert re.search(r"\nwithout a plan +step_ms .*\nunder the plan +step_ms ", printed)
    found = rows(tmp_path / "whole")
    assert [row["planned"] for row in found] == [0, 1, 1]
    assert found[0].keys() >= {"loss", "accuracy", "swa", "step_ms", "late_ms", "after_ms"}
    assert jaxcomm.plan.load(tmp_path / "whole/plan.json", ranks=8).roles["straggler"] == 1
    recorded = profile.load(tmp_path / "whole/profile.json")
    assert (recorded.provenance.tool, len(recorded.arrivals)) == ("jaxcomm.stats()", 7)
    [points] = (tmp_path / "whole/tensorboard").iterdir()
    assert b"/wait_s" in points.read_bytes()

    again = killed_before(24, tmp_path / "whole", tmp_path / "again")
    printed = run(RECIPES / "late_rank.py", [*words, f"--out={again}"], cache)
    assert "from step 16" in printed and "comes last" not in printed
    same_bits(worker(tmp_path / "whole", 24), worker(again, 24))
    assert [row["planned"] for row in rows(again)] == [0, 1, 1]


def test_groups_follow_a_busy_link_and_are_in_the_checkpoint(tmp_path, cache):
    words = ["--contend=6", "--contend_from=8", "--steps=32", "--every=8"]
    compiled = {path.name for path in cache.glob("jit_run-*")}
    printed = run(RECIPES / "two_racks.py", [*words, f"--out={tmp_path / 'whole'}"], cache)
    assert re.search(r"\nstep 16: .* rank 6 by .*: the groups change\.\n", printed), printed
    assert len({path.name for path in cache.glob("jit_run-*-cache")} - compiled) == 1
    found = rows(tmp_path / "whole")
    assert all(0 < row["settled"] <= row["at_most"] < row["apart"] / 10 for row in found)
    assert all(row["groups_ms"] < row["allreduce_ms"] for row in found)
    assert found[0]["allreduce_ms"] < found[-1]["allreduce_ms"]

    again = killed_before(32, tmp_path / "whole", tmp_path / "again")
    for table in worker(again, 24)["average"]:  # with whom worker 6 averages in each step of a period
        assert {int((row == row[6]).sum()) for row in table if row[0] >= 0} <= {1, 2}
    assert "from step 24" in run(RECIPES / "two_racks.py", [*words, f"--out={again}"], cache)
    same_bits(trained(tmp_path / "whole", 32), trained(again, 32))


def test_a_step_that_jit_partitions_is_that_of_xla_and_goes_on_after_an_interruption(tmp_path, cache):
    words = ["--units=64", "--steps=12", "--every=4"]
    for sync in ("jaxcomm", "bsp"):
        run(RECIPES / "sharded.py", [*words, f"--sync={sync}", f"--out={tmp_path / sync}"], cache)
    ours, theirs = rows(tmp_path / "jaxcomm"), rows(tmp_path / "bsp")
    assert [row["step"] for row in ours] == [4, 8, 12]
    assert ours[-1]["loss"] < ours[0]["loss"]
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, rel=1e-4)

    again = killed_before(12, tmp_path / "jaxcomm", tmp_path / "again")
    assert "from step 8" in run(RECIPES / "sharded.py", [*words, f"--out={again}"], cache)
    folders = [tmp_path / "jaxcomm", again]
    same_bits(*[ocp.StandardCheckpointer().restore(folder / "checkpoints/12/default") for folder in folders])


@pytest.mark.parametrize("words", [[], ["--bound=0.3"]])
def test_mlt_leaves_out_what_the_plan_says(recipes, monkeypatch, tmp_path, words):
    import images
    import language
    from common import recipe

    link = Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="a test")
    measured = Profile(ranks=8, link=link, provenance=Provenance(source="a test", tool="pytest"))
    made = planner.plan(profile.with_layers(measured, images.layers()), drop_bound=0.2)
    jaxcomm.plan.save(made, tmp_path / "plan.json")

    def by_name(name, workers, *, drop, every, plan):
        assert (name, workers, plan.hash) == ("mlt", 8, made.hash)
        raise JaxcommError(repr(drop))

    monkeypatch.setattr(recipe.synchronisation, "by_name", by_name)
    expected = {"": Drop.of(made), "--bound=0.3": Drop(0.3)}["".join(words)]
    with flagsaver.flagsaver(), jaxcomm.use_plan(None), pytest.raises(JaxcommError, match=re.escape(repr(expected))):
        flags.FLAGS(["images.py", "--sync=mlt", f"--plan={tmp_path / 'plan.json'}", *words])
        recipe.run("digits", images.digits)
    with flagsaver.flagsaver(), pytest.raises(JaxcommError, match=r"plan.json: Drop: the tensor .* has no bound"):
        flags.FLAGS(["language.py", "--sync=mlt", f"--plan={tmp_path / 'plan.json'}"])
        recipe.run("language", language.python_help)
    jaxcomm.use_plan(None)


@pytest.mark.parametrize("recipe", ["images", "language"])
def test_layers_are_named_as_gradients_are(recipes, recipe):
    module = __import__(recipe)
    task = module.digits(None) if recipe == "images" else module.python_help()
    params = jax.eval_shape(task.init, jax.random.key(0))["params"]
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(params)]
    found = [layer.name for layer in module.layers()]
    assert sorted(found) == sorted(names) and found != sorted(names)
