"""The content of pictures, tables and texts is compared with the schedule or plan that they show."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from jaxcomm import planner, schedules
from jaxcomm.plan import Plan
from jaxcomm.profile import Bucket, Link, Profile, Provenance
from jaxcomm.report import palette, plots, profile_summary
from jaxcomm.report.plan import explanation, timeline
from jaxcomm.report.tables import bytes_text, seconds_text, table
from jaxcomm.report.words import range_text, spec_text
from jaxcomm.schedules import Op, Schedule

SVG = "{http://www.w3.org/2000/svg}"

SCHEDULES = {
    "ring, 2": schedules.ring(2),
    "ring, 8": schedules.ring(8),
    "halving_doubling, 5": schedules.halving_doubling(5),
    "direct, 8": schedules.direct(8),
    "broadcast, 6": schedules.broadcast(6, 2),
    "straggler, 8": schedules.straggler(8, 3, 14),
    "straggler, 7, directed": schedules.straggler(7, 0, 12),
    "hybrid, 8": schedules.hybrid(8, 7, 15, 7),
    "straggler, 64": schedules.straggler(64, 17, 63),
}


def profile(ranks: int = 8, late: int = 3, seconds: float = 0.02, **fields: object) -> Profile:
    arrivals = [[seconds * (rank == late) for rank in range(ranks)]] * 4
    link = Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="a test")
    provenance = Provenance(source="a test", tool="pytest")
    return Profile(ranks=ranks, link=link, arrivals=arrivals, provenance=provenance, **fields)


def boxes(document: str) -> list[ElementTree.Element]:
    root = ElementTree.fromstring(document)
    return [rect for rect in root.iter(f"{SVG}rect") if rect.get("class", "").startswith("box ")]


def words(document: str) -> str:
    return "\n".join(text.text or "" for text in ElementTree.fromstring(document).iter(f"{SVG}text"))


def receptions(schedule: Schedule) -> set[tuple[int, int]]:
    return {(transfer.round, transfer.dst) for transfer in schedule.transfers()}


def phases(schedule: Schedule) -> list[Schedule]:
    return [phase for phase in (schedule.precondition, schedule) if phase is not None]


def limit(schedule: Schedule) -> int:
    return 30 if schedule.ranks <= 16 else 72


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_timeline_has_a_box_for_every_reception_in_a_drawn_round(schedule: Schedule) -> None:
    expected = 0
    for phase in phases(schedule):
        hidden = max(0, phase.num_rounds - limit(schedule))
        first = limit(schedule) // 2
        expected += sum(not first <= round_ < first + hidden for round_, _ in receptions(phase))
    assert len(boxes(timeline.svg(schedule))) == expected


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_timeline_boxes_do_not_overlap_and_stay_inside(schedule: Schedule) -> None:
    document = timeline.svg(schedule)
    root = ElementTree.fromstring(document)
    corners = {(float(box.get("x", "")), float(box.get("y", ""))) for box in boxes(document)}
    width, height = float(boxes(document)[0].get("width", "")), float(boxes(document)[0].get("height", ""))
    assert len(corners) == len(boxes(document))
    for axis, extent in ((0, width), (1, height)):
        places = sorted({corner[axis] for corner in corners})
        assert all(after - before > extent for before, after in itertools.pairwise(places))
    assert max(x for x, _ in corners) + width < float(root.get("width", ""))
    assert max(y for _, y in corners) + height < float(root.get("height", ""))


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_timeline_words_fit_into_the_picture(schedule: Schedule) -> None:
    root = ElementTree.fromstring(timeline.svg(schedule))
    for text in root.iter(f"{SVG}text"):
        if text.get("text-anchor") is None:  # begins at x; a letter's width is about 0.6 of its height, 0.7 if bold
            letter = (0.7 if text.get("font-weight") else 0.58) * float(text.get("font-size", ""))
            assert float(text.get("x", "")) + letter * len(text.text or "") <= float(root.get("width", "")) + letter


def test_timeline_colours_tell_exchange_reduce_and_copy() -> None:
    schedule = SCHEDULES["straggler, 8"]
    assert schedule.precondition is not None
    drawn = Counter(box.get("class") for box in boxes(timeline.svg(schedule)))
    copies = sum(transfer.op == Op.COPY for transfer in schedule.transfers())
    assert drawn == {
        "box exchange": 2 * schedule.num_chunks,
        "box copy": copies,
        "box reduce": len(receptions(schedule.precondition)),
    }


def test_timeline_shows_the_arrival_and_the_absence_of_a_late_rank() -> None:
    document = timeline.svg(SCHEDULES["straggler, 8"])
    assert "rank 3 arrives →" in words(document) and 'class="arrival"' in document and 'class="absent"' in document
    assert "arrives" not in words(timeline.svg(SCHEDULES["ring, 8"]))


def test_timeline_says_that_it_leaves_rounds_out() -> None:
    assert "the middle is left out" in words(timeline.svg(schedules.straggler(8, 3, 200)))
    assert "left out" not in words(timeline.svg(SCHEDULES["straggler, 8"]))


def test_timeline_escapes_its_title() -> None:
    named = dataclasses.replace(SCHEDULES["ring, 2"], kind="a < b & c")
    assert "a < b & c allreduce" in words(timeline.svg(named))


def test_table_aligns_numbers_right_and_words_left() -> None:
    lines = table(["name", "n"], [["a", 1], ["bcd", 23], ["e", None]]).splitlines()
    assert lines == ["name   n", "----  --", "a      1", "bcd   23", "e      -"]


@pytest.mark.parametrize(
    ("count", "text"), [(1, "1 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**24, "16 MiB"), (3 * 2**30, "3 GiB")]
)
def test_bytes_text(count: int, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1.5, "1.5 s"),
        (0.02, "20 ms"),
        (0.0009996, "1 ms"),
        (1.25e-5, "12.5 µs"),
        (3e-9, "3 ns"),
        (1234, "1234 s"),
    ],
)
def test_seconds_text(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_png_holds_every_panel() -> None:
    panel = plots.Panel("one", {"a": ([1.0, 4.0], [1.0, 2.0])})
    one, four = (plots.png(rows, x="x", y="y", log=True) for rows in ([[panel]], [[panel, panel], [panel, panel]]))
    assert one.startswith(b"\x89PNG") and four.startswith(b"\x89PNG")
    assert int.from_bytes(four[16:20], "big") > 1.5 * int.from_bytes(one[16:20], "big")


def test_png_scales_the_axes_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **options: figures.append(figure))
    for options in ({}, {"log": True}, {"log_y": True}):
        plots.png([[plots.Panel("one", {"a": ([1.0, 4.0], [1.0, 2.0])})]], x="x", y="y", **options)
    scales = [(figure.axes[0].get_xscale(), figure.axes[0].get_yscale()) for figure in figures]
    assert scales == [("linear", "linear"), ("log", "log"), ("linear", "log")]


def test_png_draws_a_name_alike_in_every_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *args, **options: figures.append(figure))
    line = ([1.0, 4.0], [1.0, 2.0])
    plots.png([[plots.Panel("some", {"b": line}), plots.Panel("all", {"a": line, "b": line})]], x="x", y="y")
    some, all_ = figures[0].axes
    looks = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in all_.get_lines()}
    [alone] = some.get_lines()
    assert looks["b"] == (alone.get_color(), alone.get_linestyle()) != looks["a"]
    assert {text.get_text() for text in some.get_legend().get_texts()} == {"a", "b"}


@pytest.mark.parametrize(
    ("name", "colour"),
    {
        "ring": palette.RING,
        "lower bound": palette.BOUND,
        "lax.pmean": palette.LAX,
        "jaxcomm.pmean, no plan": palette.PLAIN,
        "direct (no plan)": palette.PLAIN,
        "jaxcomm.pmean, the plan": palette.PLAN,
        "straggler": palette.LATE,
        "halving/doubling": palette.HALVING,
    }.items(),
)
def test_one_colour_for_each_meaning(name: str, colour: str) -> None:
    assert palette.of_names([name])[name] == colour
    assert palette.of_names(["during the call", "an old rail", name])[name] == colour, "whatever else is drawn"


def test_no_two_lines_have_one_colour_as_long_as_there_are_some() -> None:
    names = ["as planned", "planned anew", "the plan", *map(str, range(5))]
    assert len({*palette.of_names(names).values()}) == len(names) == 8
    assert palette.of_names([*names, "more"]).keys() == {*names, "more"}


def test_pictures_say_what_they_show_to_those_who_do_not_see_them() -> None:
    drawing = ElementTree.fromstring(timeline.svg(schedules.straggler(8, 3, 14)))
    assert drawing.get("role") == "img"
    assert drawing.get("aria-label") == "straggler allreduce, 8 ranks, 14 chunks: 16 rounds after rank 3 arrives"


def made(**fields: object) -> Plan:
    return planner.plan(profile(**fields))  # type: ignore[arg-type]


def test_explanation_shows_all_that_was_considered_and_says_when_it_would_not_help() -> None:
    plan = made()
    text = explanation.explanation(plan)
    for entry in plan.collectives:
        assert f"{range_text(entry)}: why {spec_text(entry.schedule)}" in text
        for offer in entry.alternatives:
            assert spec_text(offer.schedule) in text and seconds_text(offer.seconds) in text
    assert "straggler is rank 3" in text and "pays from a delay of" in text and "When this would not help" in text


def test_one_range_of_all_sizes_says_which_size_its_times_are_for() -> None:
    link = Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="a test")
    found = planner.plan(Profile(ranks=8, link=link, provenance=Provenance(source="a test", tool="pytest")))
    (entry,) = found.collectives
    head, _, row = (line.split("  ") for line in explanation.summary(found).splitlines())
    cells = [[cell.strip() for cell in line if cell.strip()] for line in (head, row)]
    assert [cells[0][i] for i in (0, 2)] == ["bytes", "times for"]
    assert [cells[1][i] for i in (0, 2)] == ["any size", bytes_text(entry.predicted.reference_bytes)]


def test_explanation_says_what_a_delay_can_gain_at_best() -> None:
    plan = made()
    entry, schedule = explanation.headline(plan)
    assert schedule.precondition is not None
    best = schedule.seconds(entry.predicted.reference_bytes, plan.assumptions.alpha_s, plan.assumptions.beta_s_per_byte)
    plain = min(entry.predicted.ring, entry.predicted.halving_doubling, entry.predicted.direct)
    sentence = f"saves the most, {seconds_text(plain - best)} of {seconds_text(plain)}, from "
    assert sentence in explanation.explanation(plan)


def test_explanation_of_a_plan_without_a_late_rank_says_so() -> None:
    plan = planner.plan(profile().model_copy(update={"arrivals": []}))
    text = explanation.explanation(plan)
    assert "The profile does not say which rank is late" in text and "No schedule of this plan uses a delay" in text


def test_explanation_tells_what_the_buckets_of_a_step_gain() -> None:
    buckets = [Bucket(name="all", bytes=2**24, ready_s=0.0)]
    assert "The 1 gradient bucket of a step, 16 MiB together" in explanation.explanation(made(buckets=buckets))


def test_headline_is_the_range_that_saves_most() -> None:
    plan = made()
    entry, schedule = explanation.headline(plan)
    gains = {offer.gain for each in plan.collectives for offer in each.alternatives if offer.verdict == "chosen"}
    [chosen] = [offer for offer in entry.alternatives if offer.verdict == "chosen"]
    assert chosen.gain == max(gains) > 0
    assert schedule.late == 3


@pytest.mark.parametrize("nbytes", [1, 4096, 2**20, 2**40])
def test_entry_for_is_what_the_plan_runs(nbytes: int) -> None:
    plan = made()
    assert plan.schedules[plan.collectives.index(explanation.entry_for(plan, nbytes))] == plan.schedule_for(nbytes)


def test_measurements_name_the_straggler_and_its_delay() -> None:
    text = profile_summary.summary(profile())
    assert "rank 3, last in 4 of 4 steps (100%)" in text and "median 20 ms" in text and "10 GB/s" in text
    assert "unknown" in profile_summary.summary(profile().model_copy(update={"arrivals": []}))
