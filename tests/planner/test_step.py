"""The planned step: gradients share buckets where that saves time, and no prediction is below the lower bound."""

from __future__ import annotations

import itertools
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomm import plan, planner
from jaxcomm.cli import main
from jaxcomm.plan.files import validate
from jaxcomm.planner.late_ranks import LateRanks
from jaxcomm.planner.schedules import Setting
from jaxcomm.planner.step.bound import lower_bound
from jaxcomm.profile.cluster import Cluster
from jaxcomm.report.plan import explanation
from jaxcomm.report.plan.step import gantt, names_text, ticks
from jaxcomm.simulate import PORTS, Delays
from tests.cli import documents
from tests.planner.profiles import gradients, made


def test_small_gradients_share_buckets_where_a_round_costs_more_than_their_bytes() -> None:
    result = planner.plan(made(64, None, gradients([2**18] * 12, 1e-4), alpha=3e-5, beta=1e-10))
    step = result.step
    assert step is not None
    assert step.seconds < 0.5 * step.scheduled_seconds
    assert len(step.planned) < 8
    for bucket in step.planned:
        assert result.schedule_for(bucket.bytes) == plan.build(bucket.schedule, 64, {}, None)
    again = planner.plan(made(64, None, gradients([2**18] * 12, 1e-4), alpha=3e-5, beta=1e-10))
    assert again.canonical_bytes() == result.canonical_bytes()
    assert validate(result.model_dump(mode="json", exclude={"hash"}), "again") == result


def test_large_gradients_keep_their_buckets() -> None:
    result = planner.plan(made(8, None, gradients([2**28] * 6, 1e-2)))
    assert result.step is not None and [bucket.gradients for bucket in result.step.planned] == [1] * 6


def test_many_gradients_are_planned() -> None:
    source = made(64, [0.01, 0.02], gradients([2**16 + i // 10 for i in range(120)], 1e-5), alpha=3e-5)
    step = planner.plan(source, time_limit=1.0).step
    assert step is not None and step.buckets == 120
    assert step.lower_bound_seconds <= step.seconds < 0.5 * step.scheduled_seconds
    assert [gradient.name for group in step.members() for gradient in group] == [f"layer{i}" for i in range(120)]


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    ranks=st.sampled_from([3, 4, 8, 64]),
    sizes=st.lists(st.sampled_from([2**12, 2**18, 2**22, 3 * 2**22, 2**27]), min_size=1, max_size=5),
    apart=st.sampled_from([0.0, 1e-4, 5e-3]),
    delays=st.one_of(st.none(), st.lists(st.floats(0, 0.03), min_size=1, max_size=4)),
    alpha=st.sampled_from([0.0, 3e-6, 1e-4]),
)
def test_no_step_is_worse_than_its_buckets_as_they_were(
    ranks: int, sizes: list[int], apart: float, delays: list[float] | None, alpha: float
) -> None:
    source = made(ranks, delays, gradients(sizes, apart), alpha=alpha)
    step = planner.plan(source, time_limit=0.5).step
    assert step is not None
    links = Cluster(alpha, source.link.beta_s_per_byte)
    setting = Setting(ranks, links, PORTS, 0.02, LateRanks(delays=Delays(delays or ())))
    assert lower_bound(setting, source.buckets) <= step.seconds * (1 + 1e-8) + 1e-15
    assert step.lower_bound_seconds <= step.seconds <= step.scheduled_seconds * (1 + 1e-8)
    assert step.scheduled_seconds <= step.plain_seconds * (1 + 1e-6)
    ends = [bucket.after.end_s for bucket in step.planned]
    if not delays or len(set(delays)) == 1:  # then all steps are like the drawn step
        assert max(ends) - step.gradients[-1].ready_s - step.delay_s == pytest.approx(step.seconds, rel=1e-6, abs=1e-9)
    assert [bucket.bytes for bucket in step.planned] == [sum(g.bytes for g in group) for group in step.members()]
    for earlier, later in itertools.pairwise(step.members()):
        assert earlier[-1].ready_s <= later[0].ready_s


@pytest.fixture(scope="module")
def shared() -> plan.Plan:
    sizes = [2**22, 2**18, 2**18, 2**18, 2**20, 2**18, 2**24]
    return planner.plan(made(64, [0.004, 0.005, 0.006], gradients(sizes, 5e-4), alpha=3e-5, beta=1e-10))


def test_the_step_is_explained(shared: plan.Plan) -> None:
    made_step = shared.step
    assert made_step is not None and len(made_step.planned) < 7
    text = explanation.explanation(shared)
    for words in (
        "The 7 gradient buckets of a step, 22 MiB together",
        f"That is with {len(made_step.planned)} buckets; as they are, 7 buckets take",
        "With one port per rank no boundaries, order or schedules take less than",
        "The step, if the late rank is late by 5 ms",
    ):
        assert words in text
    for members in made_step.members():
        assert names_text(members) in text


def test_the_step_is_drawn(shared: plan.Plan) -> None:
    assert shared.step is not None
    drawing = gantt(shared, shared.step)
    boxes = [each.get("class", "") for each in ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}rect")]
    assert boxes.count("bar after") == len(shared.step.planned)
    assert boxes.count("bar before") == sum(bucket.before is not None for bucket in shared.step.planned)
    words = [each.text or "" for each in ElementTree.fromstring(drawing).iter("{http://www.w3.org/2000/svg}text")]
    for number, members in enumerate(shared.step.members(), 1):
        assert any(word.startswith(f"{number}: {names_text(members)}, ") for word in words), "every bucket is named"
    assert ElementTree.fromstring(drawing).get("aria-label") == words[0]
    assert drawing.count('class="ready"') == drawing.count('class="arrival"') == len(shared.step.planned)


@pytest.mark.parametrize("end", [1e-9, 0.0652, 0.1, 1.0, 7.0, 59.9, 60.0, 123.0])
def test_ticks_are_round(end: float) -> None:
    found = ticks(end)
    width = found[1]
    assert f"{width:.0e}"[0] in "125" and width == pytest.approx(float(f"{width:.0e}"))
    assert found == pytest.approx([width * number for number in range(len(found))])
    assert 3 <= len(found) <= 7 and end - width < found[-1] <= end * (1 + 1e-9)


def test_all_that_was_considered_is_written(
    shared: plan.Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out, drawing = tmp_path / "plan.json", tmp_path / "considered.json", tmp_path / "step.svg"
    plan.save(shared, file)
    assert main(["explain", str(file), "--explain-json", str(out), "--step-svg", str(drawing)]) == 0
    assert f"Step: {drawing}" in capsys.readouterr().out and drawing.read_text().startswith("<svg")
    document = documents.document(out.read_text())
    assert document["plan"] == shared.hash and len(document["ranges"]) == len(shared.collectives)
    for row, entry in zip(document["ranges"], shared.collectives, strict=True):
        assert [offer["verdict"] for offer in row["considered"]] == [offer.verdict for offer in entry.alternatives]
        assert row["gap_to_bound"] == pytest.approx(1 - entry.predicted.lower_bound / entry.predicted.seconds)
    buckets = document["step"]["planned"]
    assert [name for bucket in buckets for name in bucket["gradients"]] == [f"layer{i}" for i in range(7)]
    for bucket in buckets:
        assert document["ranges"][bucket["range"]]["runs"] == bucket["words"]


def test_a_plan_without_a_step_has_none_to_draw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    plan.save(planner.plan(made(4)), file)
    assert main(["explain", str(file), "--step-svg", str(tmp_path / "step.svg")]) != 0
    assert f"{file}: the plan has no step to draw" in capsys.readouterr().err
