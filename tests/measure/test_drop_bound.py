"""`jaxcomm profile drop-bound`: trainings with known bounds, the statistic, the kept trainings, and errors."""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from jaxcomm import plan, profile
from jaxcomm.cli import main
from jaxcomm.errors import ProfileError
from jaxcomm.profile import Bucket, Link, Profile, Provenance, Trial, Trials
from jaxcomm.profile.drop_study import excess, search
from jaxcomm.train import Drop
from tests.cli import documents

Capture = pytest.CaptureFixture[str]

# A training takes about 100 rounds, depending on the seed. A drop of p costs 400 p² more rounds, with noise of about
# one round.
TRAINING = """
import pathlib, random

from jaxcomm.profile import Layer

LOG = pathlib.Path(__file__).with_name("log")


def train(drop, seed):
    share = drop.bound if drop else 0.0
    with LOG.open("a") as log:
        log.write(f"{share} {seed}\\n")
    rounds = 100 + 10 * random.Random(seed).gauss(0, 1) + 400 * share**2 + random.Random(f"{share} {seed}").gauss(0, 1)
    for count in range(1, 1000):
        yield count / round(rounds)


def falls(drop, seed):
    return (10 - metric for metric in train(drop, seed))


def stops_at_60(drop, seed):
    return (float("nan") if drop and drop.bound > 0.1 and count > 60 else metric
            for count, metric in enumerate(train(drop, seed)))


def broken(drop, seed):
    yield from (0.1, float("nan"))


def words(drop, seed):
    yield "accuracy 0.3"


def nothing(drop, seed):
    return []


def layers():
    return [Layer(name="front", bytes=2**20), Layer(name="back", bytes=2**18)]


def no_layers():
    return {"front": 8}


number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a training and a profile of eight ranks and two buckets."""
    (tmp_path / "training.py").write_text(TRAINING)
    measured = Profile(
        ranks=8,
        link=Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="a test"),
        buckets=[Bucket(name="last", bytes=4096, ready_s=0.0), Bucket(name="first", bytes=8192, ready_s=0.1)],
        provenance=Provenance(source="a test", tool="pytest"),
    )
    profile.save(measured, tmp_path / "profile.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds the training's folder to the path
    return tmp_path


def drop_bound(*words: str, train: str = "training.py:train") -> int:
    return main(["profile", "drop-bound", train, "--target", "1", *words])


def trained(folder: Path) -> list[str]:
    return (folder / "log").read_text().splitlines()


def test_the_share_whose_cost_is_within_the_margin_is_found(folder: Path, capsys: Capture) -> None:
    assert drop_bound("--layers", "training.py:layers", "--svg", "rounds.svg") == 0
    printed = capsys.readouterr().out
    assert "training.py:train tolerates drops of 0.1 of each gradient: to 1 in" in printed
    assert [line.split()[-1] for line in printed.splitlines() if line.startswith(" 0.")] == ["tolerated", "much"]
    tolerance = profile.load("profile.json").tolerance
    assert tolerance and tolerance.trials
    assert tolerance.bound == 0.1  # 0.1 costs 4 rounds and 0.2 costs 16; the margin is 5
    assert [layer.name for layer in tolerance.layers] == ["front", "back"]
    assert [trial.share for trial in tolerance.trials.trials] == [0.01, 0.05, 0.1, 0.2]  # 0.3 is not tried
    assert Counter(line.split()[0] for line in trained(folder)) == dict.fromkeys(
        ["0.0", "0.01", "0.05", "0.1", "0.2"], 10
    )
    found = tolerance.trials.excess(tolerance.trials.trials[2])
    assert found.mean == pytest.approx(4, abs=1) and found.low < 4 < found.high < found.margin
    texts = ElementTree.parse("rounds.svg").getroot()
    assert texts.tag.endswith("svg")


def test_a_plan_takes_the_measured_bound_and_says_where_it_comes_from(folder: Path, capsys: Capture) -> None:
    assert drop_bound("--layers", "training.py:layers") == 0
    assert main(["plan", "profile.json"]) == 0
    capsys.readouterr()
    assert main(["explain", "plan.json"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "Up to 0.1 of each gradient may be dropped, 0.1 of all (measured: 10 trainings each with training.py:train"
        in printed
    )
    planned = plan.load("plan.json")
    assert planned.drops and planned.drops.bound == 0.1
    assert Drop.of(planned).bounds == {"front": 0.1, "back": 0.1}


def test_without_layers_they_are_the_buckets_front_first(folder: Path) -> None:
    assert drop_bound("--shares", "1%", "--repeats", "2") == 0
    tolerance = profile.load("profile.json").tolerance
    assert tolerance and [layer.name for layer in tolerance.layers] == ["first", "last"]


def test_an_interrupted_run_goes_on_and_more_repeats_train_only_what_is_new(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jaxcomm.measure import training

    real, count = training.Trainings.rounds, 0

    def stop(self: Any, *args: Any) -> Any:
        nonlocal count
        count += 1
        if count > 7:
            raise KeyboardInterrupt
        return real(self, *args)

    words = ["--shares", "5%,10%", "--repeats", "5"]
    monkeypatch.setattr(training.Trainings, "rounds", stop)
    with pytest.raises(KeyboardInterrupt):
        drop_bound(*words)
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert profile.load("profile.json").tolerance is None
    assert len(trained(folder)) == 7
    capsys.readouterr()
    assert drop_bound(*words, "--dry-run", "--json") == 0
    assert documents.document(capsys.readouterr().out)["kept"] == 7
    assert len(trained(folder)) == 7
    assert drop_bound(*words, "--json") == 0
    whole = documents.document(capsys.readouterr().out)
    assert len(trained(folder)) == 15
    assert drop_bound("--shares", "5%,10%", "--repeats", "6") == 0
    assert len(trained(folder)) == len(set(trained(folder))) == 18
    for file in folder.glob("*.json*"):
        if file.name != "profile.json":
            file.unlink()
    capsys.readouterr()
    assert drop_bound(*words, "--json") == 0
    assert documents.document(capsys.readouterr().out) == whole  # the same result as after the interruption


def test_kept_trainings_of_another_setting_are_not_taken(folder: Path, capsys: Capture) -> None:
    words = ["--shares", "1%", "--repeats", "2"]
    assert drop_bound(*words) == 0
    assert drop_bound(*words, "--max-rounds", "400") == 1
    message = "keeps trainings with another max_rounds: 500, not 400"
    assert f"error: profile.json.trainings.json: {message}.\n  Cure: remove the file" in capsys.readouterr().err
    (folder / "training.py").write_text(TRAINING + "\n")
    assert drop_bound(*words) == 1
    assert "keeps trainings from before training.py was changed" in capsys.readouterr().err
    (folder / "profile.json.trainings.json").write_text("{")
    assert drop_bound(*words) == 1
    assert "error: profile.json.trainings.json: is not JSON" in capsys.readouterr().err


def test_a_metric_that_falls_is_a_target_too(folder: Path) -> None:
    words = ["--target", "9", "--falling", "--shares", "1%", "--repeats", "3"]
    assert drop_bound(*words, train="training.py:falls") == 0
    trials = profile.load("profile.json").tolerance.trials  # type: ignore[union-attr]
    assert trials and trials.falling and all(70 < rounds < 130 for rounds in trials.baseline)


def test_a_training_that_losses_make_diverge_is_not_repeated(folder: Path, capsys: Capture) -> None:
    assert drop_bound("--shares", "10%,20%", train="training.py:stops_at_60") == 0
    assert "too much: seed 0 misses the target" in capsys.readouterr().out
    tolerance = profile.load("profile.json").tolerance
    assert tolerance and tolerance.trials and tolerance.trials.trials[1].rounds == [None]
    assert tolerance.bound == 0.1
    assert trained(folder).count("0.2 0") == 1 and "0.2 1" not in trained(folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["training.py:trains"], "training.py: has no function 'trains'; it has: Layer, broken, falls, layers"),
        (["training.py:number"], "training.py: has no function 'number'"),
        (["elsewhere.py:train"], "elsewhere.py: there is no such file"),
        (["no_such_module:train"], "no_such_module: there is no module 'no_such_module'"),
        (["training.py"], "'training.py': names no function.\n  Cure: write path/file.py:name, or module:name"),
        (["training.py:nothing"], "training.py:nothing: yielded no metric with seed 0"),
        (["training.py:broken"], "training.py:broken: the metric is nan after round 2 (seed 0, no drops)"),
        (["training.py:words"], "training.py:words: yielded 'accuracy 0.3' after round 1, which is not a number"),
        (["training.py:train", "--max-rounds", "50"], "after 50 rounds the metric is 0.4"),
        (
            ["training.py:train", "--max-rounds", "50"],
            "it has not risen to the target 1 (seed 0, no drops).\n  Cure: an",
        ),
        (["training.py:train", "--repeats", "1"], "--repeats is 1; it must be at least 2"),
        (["training.py:train", "--margin", "0"], "--margin is 0, which no number of trainings proves"),
        (["training.py:train", "--target", "nan"], "--target is nan; it must be a number"),
        (["training.py:train", "--layers", "training.py:no_layers"], "returned {'front': 8}, not layers"),
        (["training.py:train", "--out", "nowhere.json"], "error: nowhere.json: cannot be read"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    folder: Path, words: list[str], message: str, capsys: Capture
) -> None:
    before = Path("profile.json").read_bytes()
    assert main(["profile", "drop-bound", "--target", "1", *words]) == 1
    error = capsys.readouterr().err
    assert message in error and "\n  Cure: " in error
    assert Path("profile.json").read_bytes() == before
    assert not (folder / "profile.json.trainings.json").exists()


@pytest.mark.parametrize("shares", ["0,5%", "5%,1%", "5%,5%"])
def test_shares_ascend(folder: Path, shares: str, capsys: Capture) -> None:
    assert drop_bound("--shares", shares) == 2
    assert "is not a list of ascending shares above 0; write for example 1%,5%,10%" in capsys.readouterr().err


def test_a_profile_without_gradients_is_refused_before_training(folder: Path, capsys: Capture) -> None:
    measured = profile.load("profile.json").model_copy(update={"buckets": []})
    profile.save(measured, "profile.json")
    assert drop_bound() == 1
    assert "has neither tolerance.layers nor buckets" in capsys.readouterr().err
    assert not (folder / "log").exists()


# The statistic


@settings(max_examples=50, deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(1, 500), st.integers(1, 500)), min_size=2, max_size=20),
    margin=st.floats(0.01, 0.5),
)
def test_the_interval_is_that_of_a_paired_t_test(pairs: list[tuple[int, int]], margin: float) -> None:
    before, after = zip(*pairs, strict=True)
    found = excess(before, after, margin)
    limit = margin * statistics.fmean(before)
    assert found.margin == limit
    differences = np.subtract(after, before)
    if differences.std() == 0:
        assert found.mean == found.low == found.high == differences[0]
        return
    low, high = stats.ttest_rel(after, before).confidence_interval(0.90)
    assert (found.mean, found.low, found.high) == pytest.approx((differences.mean(), low, high))
    if abs(high - limit) > 1e-6 and abs(low - limit) > 1e-6:
        # "tolerated" must agree with a one-sided t test against the margin at 5 %
        test = stats.ttest_rel(after, np.add(before, limit), alternative="less")
        assert (found.verdict == "tolerated") == (test.pvalue < 0.05)
        assert (found.verdict == "too much") == (low > limit)


def test_a_share_that_costs_the_whole_margin_is_tolerated_once_in_twenty_times() -> None:
    draw, wrong, right = random.Random(0), 0, 0
    for _ in range(4000):
        before = [round(draw.gauss(1000, 100)) for _ in range(10)]
        at_margin = [round(each + 50 + draw.gauss(0, 30)) for each in before]
        free = [round(each + draw.gauss(0, 30)) for each in before]
        wrong += excess(before, at_margin, 0.05).verdict == "tolerated"
        right += excess(before, free, 0.05).verdict == "tolerated"
    assert wrong / 4000 == pytest.approx(0.05, abs=0.02)  # about five standard deviations
    assert right / 4000 > 0.99


def test_shares_are_tried_in_order_up_to_the_first_that_is_not_tolerated() -> None:
    calls: list[tuple[float, int]] = []

    def run(share: float, seed: int) -> int | None:
        calls.append((share, seed))
        return None if share == 0.3 and seed == 2 else 100 + seed % 2

    baseline, trials = search(run, [0.1, 0.2, 0.3, 0.4], 5, 0.05)
    assert baseline == [100, 101, 100, 101, 100]
    assert [trial.rounds for trial in trials] == [baseline, baseline, [100, 101, None]]
    assert calls[15:] == [(0.3, 0), (0.3, 1), (0.3, 2)]


# The file


def trials(**changes: Any) -> dict[str, Any]:
    found = Trials(
        train="a.py:train",
        target=0.9,
        max_rounds=100,
        margin=0.05,
        baseline=[40, 41],
        trials=[Trial(share=0.1, rounds=[40, 41]), Trial(share=0.2, rounds=[40, None])],
    )
    return found.model_dump() | changes


def completed(folder: Path, bound: float | None, **changes: Any) -> Profile:
    document = profile.load(folder / "profile.json").model_dump()
    layers = [{"name": "x", "bytes": 8}]
    return profile.validate(
        document | {"tolerance": {"layers": layers, "bound": bound, "trials": trials(**changes)}}, "p"
    )


@pytest.mark.parametrize(
    ("bound", "changes", "message"),
    [
        (0.2, {}, "tolerance.bound is 0.2, but by its trials it is 0.1"),
        (None, {}, "tolerance.bound is None, but by its trials it is 0.1"),
        (0.1, {"baseline": [40, 41, 42]}, "trials[0].rounds has 2 entries; baseline has 3"),
        (0.1, {"baseline": [40]}, "tolerance.trials.baseline"),
        (0.1, {"margin": 0.0}, "tolerance.trials.margin is 0.0"),
        (0.1, {"target": math.nan}, "tolerance.trials.target is nan"),
        (0.1, {"trials": [{"share": 0.1, "rounds": [None, 3]}]}, "rounds[0] is null; no seed is tried after one"),
        (
            0.1,
            {"trials": [{"share": s, "rounds": [40, 41]} for s in (0.1, 0.1)]},
            "trials[1].share is 0.1; shares must",
        ),
    ],
)
def test_trials_that_cannot_be_are_refused(folder: Path, bound: float, changes: dict[str, Any], message: str) -> None:
    assert completed(folder, 0.1).tolerance
    with pytest.raises(ProfileError) as error:
        completed(folder, bound, **changes)
    assert message in str(error.value)


def test_profiles_without_trials_have_the_hash_they_had(folder: Path) -> None:
    document = profile.load("profile.json").model_dump() | {"tolerance": {"layers": [{"name": "x", "bytes": 8}]}}
    without = profile.validate(document, "p")
    assert b"trials" not in without.canonical_bytes()
    assert without.hash != completed(folder, 0.1).hash
