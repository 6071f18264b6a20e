"""The demo at a tiny scale: all promised files exist, and their contents are consistent."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from jaxcomm import plan, profile
from jaxcomm.cli import main
from jaxcomm.cli.demo import predicted_seconds
from jaxcomm.plan import timed
from jaxcomm.plan.values import Plain
from jaxcomm.report.demo import screen
from tests.cli import documents

pytest.importorskip("flax", reason="the demo trains a Flax model")
pytest.importorskip("sklearn", reason="the demo trains on scikit-learn's digits")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "out"
    assert main(["demo", "--out", str(out), "--steps", "12", "--hidden", "64", "--late", "rank=5,ms=30"]) == 0
    return out


def test_files(demo: Path) -> None:
    names = {"report.json", "report.md", "loss.png", "timeline.svg", "plan.json", "profile.json"}
    assert {path.name for path in demo.iterdir()} == names
    assert (demo / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "rank" in "".join(ElementTree.parse(demo / "timeline.svg").getroot().itertext())
    page = (demo / "report.md").read_text()
    assert all(f"({name})" in page for name in names - {"report.md"})
    assert all(len(words) > 40 for words in re.findall(r"!\[(.*?)\]", page)), "pictures in words"


def test_the_report_separates_the_gains_of_executor_and_plan(demo: Path) -> None:
    report = documents.document((demo / "report.json").read_text())
    lax, direct, planned = (report[f"step_ms_{name}"] for name in ("lax", "direct", "jaxcomm"))
    words = " ".join((screen(report, "out", "jaxcomm") + (demo / "report.md").read_text()).split())
    changes = (direct - lax, planned - direct)
    by_executor, by_plan = (f"{abs(ms):.1f} ms {'less' if ms <= 0 else 'more'}" for ms in changes)
    sentence = f"takes {direct:.1f} ms, {by_executor} than lax.pmean; under the plan it is {by_plan}."
    assert words.count(sentence) == 2
    assert f"| median step, ms | {lax:.1f} | {direct:.1f} | {planned:.1f} |" in words


def test_report(demo: Path) -> None:
    report = documents.document((demo / "report.json").read_text())
    made, late = plan.load(demo / "plan.json", ranks=8), profile.find_straggler(profile.load(demo / "profile.json"))
    assert (report["devices"], report["steps"], report["plan_hash"]) == (8, 12, made.hash)
    assert report["straggler"]["rank"] == late.rank == 5
    assert report["straggler"]["is_late"]
    assert 20 < report["straggler"]["median_ms"] < 200
    assert made.roles.get("straggler") == 5
    assert sum(report["last_in_training"]) == report["steps"] == report["timed_steps"] + 5
    assert report["collective_ms"]["measured"].keys() == {"ring", "direct", "plan"}
    assert report["step_ms_jaxcomm"] > 30  # rank 5 is 30 ms late in every step
    for which in ("predicted", "measured"):
        times = report["collective_ms"][which]
        assert report[f"{which}_gain"] == pytest.approx(1 - times["plan"] / times["ring"])


def test_predictions_are_those_of_the_plan(demo: Path) -> None:
    made, measured = plan.load(demo / "plan.json", ranks=8), profile.load(demo / "profile.json")
    for entry in made.collectives:
        nbytes = entry.predicted.reference_bytes
        expected = {"plan": entry.predicted.seconds, "ring": entry.predicted.ring, "direct": entry.predicted.direct}
        for name, seconds in expected.items():
            of = made if name == "plan" else timed.single(Plain(kind=name), 8, 5)
            assert predicted_seconds(measured, made, of, nbytes) == pytest.approx(seconds, rel=1e-6)


def test_where_nobody_is_late_nobody_is_called_so(demo: Path) -> None:
    report = documents.document((demo / "report.json").read_text())
    report["straggler"] |= {"is_late": False, "late_steps": 9}
    printed = " ".join(screen(report, "out", "jaxcomm").split())
    assert (
        "No rank of 8 is late beyond chance, or enough to matter; most often rank 5: last in 9 of 50 steps" in printed
    )


def test_all_trainings_learn_the_same(demo: Path) -> None:
    report = documents.document((demo / "report.json").read_text())
    assert report["max_abs_param_diff"] < 1e-5
    assert report["final_loss_direct"] == pytest.approx(report["final_loss_lax"], abs=1e-5)
    assert report["final_loss_jaxcomm"] == pytest.approx(report["final_loss_lax"], abs=1e-5)
    assert report["final_loss_lax"] < math.log(10)  # better than guessing
