"""Recipes as a user runs them: their files, their mistakes, and the same bits after an interruption."""

from __future__ import annotations

import csv
import itertools
import math
import pickle

import jax
import numpy as np
import pytest
from recipe_scripts import RECIPES, kill_after, run, start

from jaxcomm.errors import JaxcommError
from jaxcomm.train import Loss

pytest.importorskip("flax", reason="the recipes' models are Flax's")
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


def test_a_mistake_of_the_users_is_one_message(tmp_path, cache):
    printed = run(RECIPES / "language.py", [f"--plan={tmp_path}/plan.json", f"--out={tmp_path}"], cache, code=1)
    assert printed.startswith("error: ") and f"{tmp_path}/plan.json" in printed and "Traceback" not in printed


def test_the_language_model_learns_round_by_round(recipes):
    import language

    def rounds():
        return [*itertools.islice(language.train(Loss(0.2), 3), 2)]

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
    [("ds-sync", 3, "there are 3 workers; two racks take"), ("gosip", 8, "there is no synchronisation 'gosip'")],
)
def test_mistakes_are_named(recipes, name, workers, message):
    from common import synchronisation

    with pytest.raises(JaxcommError, match=message):
        synchronisation.by_name(name, workers)
