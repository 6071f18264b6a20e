"""The content of a run's picture, trace, scalars and texts is compared with the run's records."""

from __future__ import annotations

import datetime
import json
import struct
import typing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tensorboardX.proto.event_pb2 import Event

from jaxcomm import plan, planner, records
from jaxcomm.cli import main
from jaxcomm.plan.in_force import in_force
from jaxcomm.profile import Link, Profile, Provenance, run_file
from jaxcomm.profile.run_file import SavedRun
from jaxcomm.report.run import page as run_page
from jaxcomm.report.run import picture as run_picture
from jaxcomm.report.run import series as run_series
from jaxcomm.report.run import tensorboard
from jaxcomm.report.run import trace as run_trace
from jaxcomm.report.run import words as run_words
from jaxcomm.report.run.series import Interval, TimeGrid
from jaxcomm.statistics import Stats
from tests.cli import documents

Capture = pytest.CaptureFixture[str]
SVG = "{http://www.w3.org/2000/svg}"
SECONDS = 20


def site(plan: str = "auto", begin: int = 0, end: int = 10, ranks: int = 4, **fields: Any) -> dict[str, Any]:
    """A site with one span per second. In each of the 5 calls of a span, the last rank is 50 ms late."""
    spans = [
        {"at_s": at, "length_s": 1.0, "calls": 5, "after_arrival_s": 0.04, "arrivals": [0.0] * (ranks - 1) + [0.05]}
        for at in range(begin, end)
    ]
    record = {"name": "psum", "axes": "data", "plan": plan, "ranks": ranks, "bytes": 4096, "failed": 0, "work_s": []}
    record |= {"calls": 5 * len(spans), "transfer_s": 1.0, "early_bytes_share": 0.0, "wait_s": [0.1] * ranks}
    record |= {"late": [0] * ranks, "arrivals": [[0.0] * (ranks - 1) + [0.05]] * 2, "after_arrival_s": [0.04] * 2}
    return record | {"spans": spans} | fields


def rail(process: int, name: str, share: int, **fields: Any) -> dict[str, Any]:
    """A rail that carries 1 MB per second. Its rate of 2 MB/s is measured in the first second."""
    spans = [
        {
            "at_s": at,
            "length_s": 1.0,
            "bytes": 10**6,
            "bytes_per_s": None if at else 2e6,
            "share": None if at else share,
        }
        for at in range(SECONDS)
    ]
    record = {"process": process, "rail": name, "is_open": True, "has_left": False, "fences": 0, "bytes": 20 * 10**6}
    return record | {"shares": [[0, 1024 * (name == "eth0")], [65536, share]], "spans": spans, "changes": []} | fields


def cut(process: int) -> dict[str, Any]:
    """A rail that is fenced for four seconds."""
    changes = [{"at_s": 5.5, "is_open": False, "why": "a <cut>"}, {"at_s": 9.5, "is_open": True, "why": ""}]
    spans = rail(process, "eth0", 768)["spans"]
    spans[5] |= {"share": 0}
    spans[9] |= {"share": 768}
    return rail(process, "eth0", 768, fences=1, changes=changes, spans=spans)


EVENTS = [
    {"at_s": 1.0, "text": "the links have been measured", "outcome": "begun"},
    {"at_s": 12.0, "text": "rank 3 is late; sums follow plan 3f9a01c2", "outcome": "followed", "late": [3]}
    | {"late_by_s": 0.05, "plan": "3f9a01c2", "before_s": 0.04, "after_s": 0.03},
]
RAILS = [cut(1), rail(1, "eth1", 256), rail(2, "eth0", 768), rail(2, "eth1", 256)]


def saved(
    sites: list[dict[str, Any]],
    rails: list[dict[str, Any]] = (),
    plans: Any = (),
    events: Any = (),
    at_s: float = SECONDS,
) -> SavedRun:
    return run_file.decode(Stats(sites, rails, plans, events, float(at_s)).json().encode(), "run.json")


WHOLE = saved([site(), site("3f9a01c2", 10, 20)], RAILS, events=EVENTS)


def shapes(document: str, kind: str) -> list[ElementTree.Element]:
    return [each for each in ElementTree.fromstring(document).iter() if each.get("class") == kind]


def words(document: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(document).iter(f"{SVG}text")]


def titles(elements: list[ElementTree.Element]) -> list[str]:
    return [each.findtext(f"{SVG}title") or "" for each in elements]


def test_the_picture_shows_shares_and_when_a_rail_was_fenced() -> None:
    document = run_picture.svg(WHOLE)
    assert len(shapes(document, "panel")) == 6
    assert titles(shapes(document, "fenced")) == ["eth0 fenced at 5.500 s, for 4 s: a <cut>"]
    shares = titles(shapes(document, "share"))
    assert {"eth0 75.0% from 0.00 s", "eth1 25.0% from 0.00 s"} <= {*shares}
    assert not any(share.startswith("eth0") and share.endswith("from 5.00 s") for share in shares)
    assert {"process 1", "process 2", "eth0", "eth1"} <= {*words(document)}


def test_shares_fill_their_strip_also_between_the_changes_of_two_rails() -> None:
    document = run_picture.svg(WHOLE)
    depths: dict[str, float] = {}
    for box in shapes(document, "share"):
        at = box.get("x", "")
        depths[at] = depths.get(at, 0.0) + float(box.get("height", ""))
    assert all(depth / 22 in (1.0, 2.0) for depth in depths.values()), "of one strip, or both"


def test_the_picture_shows_who_was_late_which_plans_were_followed_and_why() -> None:
    document = run_picture.svg(WHOLE)
    late = [each for each in shapes(document, "late") if float(each.get("fill-opacity", "")) > 0.9]
    assert late and all(title.startswith("rank 3, ") and "50 ms after the first" in title for title in titles(late))
    assert titles(shapes(document, "plan")) == ["auto, 0.00 s to 10.00 s", "3f9a01c2, 10.00 s to 20.00 s"]
    assert titles(shapes(document, "event")) == [event["text"] for event in EVENTS]
    assert "2  12.0 s  rank 3 is late; sums follow plan 3f9a01c2" in words(document)


def test_everything_drawn_is_in_the_picture() -> None:
    root = ElementTree.fromstring(run_picture.svg(WHOLE))
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    for shape in root.iter(f"{SVG}rect"):
        x, y = float(shape.get("x") or 0), float(shape.get("y") or 0)
        assert x >= 0 and x + float(shape.get("width", "")) <= width
        assert y >= 0 and y + float(shape.get("height", "")) <= height
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(text.get("y", "")) <= height


def test_rows_that_the_picture_leaves_out_are_counted() -> None:
    many = saved([site(ranks=40)], [rail(process, "eth0", 1024) for process in range(1, 12)])
    titles = " ".join(words(run_picture.svg(many)))
    assert "(3 more processes are left out)" in titles and "(8 more ranks are left out)" in titles
    assert {"rank 39", "rank 0"} <= {*words(run_picture.svg(many))}, "the latest one is drawn"


def test_a_run_without_a_call_has_a_picture_a_trace_and_a_page() -> None:
    nothing = saved([], at_s=0)
    assert "no call yet" in words(run_picture.svg(nothing))
    assert json.loads(run_trace.of_run(nothing))["traceEvents"] == []
    assert "no call yet" in run_page.html(nothing)
    assert tensorboard.scalars(nothing) == []


def test_bytes_and_calls_are_all_in_some_column() -> None:
    grid = TimeGrid(0.0, float(SECONDS), 7)
    carried = run_series.carried(WHOLE.rails, grid)
    assert sum(each.value * grid.width for each in carried) == pytest.approx(4 * SECONDS * 1e6)
    assert run_series.lateness(WHOLE, grid)[3] == pytest.approx([0.05] * 7)
    assert {each.value for each in run_series.rates(WHOLE.rails, grid)} == {2e6}


def test_a_rail_whose_first_changes_are_forgotten_was_closed_before_it_was_taken_back() -> None:
    [found] = saved([], [rail(1, "eth0", 0, changes=[{"at_s": 3.0, "is_open": True, "why": ""}])]).rails
    assert run_series.closed(found, 1.0, 9.0) == [Interval(1.0, 3.0)]
    [found] = saved([], [rail(1, "eth0", 0, changes=[{"at_s": 3.0, "is_open": False, "why": "x"}])]).rails
    assert run_series.closed(found, 1.0, 9.0) == [Interval(3.0, 9.0, word="x")]


def test_the_trace_has_the_fence_the_plans_and_a_counter_for_each_number() -> None:
    events = json.loads(run_trace.of_run(WHOLE))["traceEvents"]
    [fenced] = [event for event in events if event["name"] == "fenced"]
    assert (fenced["ts"], fenced["dur"], fenced["args"]) == (5.5e6, 4e6, {"why": "a <cut>"})
    plans = {
        event["name"]: (event["ts"], event["dur"]) for event in events if event.get("cat") == "plan" and "dur" in event
    }
    assert plans == {"no plan": (0, 10e6), "3f9a01c2": (10e6, 10e6)}
    assert [event["args"]["text"] for event in events if event["ph"] == "i"] == [event["text"] for event in EVENTS]
    counters = [event for event in events if event["ph"] == "C"]
    assert sum(event["name"] == "eth1 to process 2, MB/s" for event in counters) == SECONDS
    assert {event["args"]["rank 3"] for event in counters if "rank 3" in event["args"]} == {50.0}


def test_the_file_for_tensorboard_has_all_scalars() -> None:
    data, messages = tensorboard.events(WHOLE, 1e9), []
    while data:  # a record is a length, its checksum, a message, and its checksum
        length = struct.unpack("<Q", data[:8])[0]
        messages.append(Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    assert messages[0].file_version == "brain.Event:2"
    found = {}
    for event in messages[1:]:
        assert event.wall_time == pytest.approx(1e9 + event.step / 1e3, abs=1e-3)
        [value] = event.summary.value
        found[value.tag, event.step] = value.simple_value
    scalars = tensorboard.scalars(WHOLE)
    assert found == {
        (each.name.replace(" ", "_"), round(1e3 * each.at_s)): pytest.approx(float(each.value)) for each in scalars
    }
    names = {name for name, _ in found}
    assert {"rails/1/eth0/share", "rails/2/eth1/carried_bytes_per_s", "psum/data/4096/late_s/rank_3"} <= names


PLAN = planner.plan(
    Profile(
        ranks=4,
        link=Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="a test"),
        arrivals=[[0.0, 0.0, 0.0, 0.02]] * 4,
        provenance=Provenance(source="a test", tool="pytest"),
    )
)
MADE = {"axes": [], "since_s": 11.0, **in_force(PLAN), "file": PLAN.model_dump(mode="json")}


def test_what_is_in_force_is_ranges_shares_and_the_threshold() -> None:
    run = saved([site()], RAILS, [MADE])
    assert run.written is not None
    output = run_words.in_force(run, run.written + datetime.timedelta(seconds=3))
    assert output.startswith("As the run wrote it 3 s ago, 20 s after it began.")
    assert f"follow plan {PLAN.hash[:8]} for 4 ranks, straggler is rank 3, since 11.0 s." in output
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert "process rail state 0 B – 64 KiB 64 KiB and more" in lines
    assert "1 eth0 open 100.0% 75.0%" in lines and "1 eth1 open 0.0% 25.0%" in lines
    assert any(line.startswith("Calls of 64 KiB or more take several rails") for line in lines)
    assert any(line.startswith("0 B – ") and line.endswith(" direct") for line in lines)


def test_the_summary_counts_what_plan_auto_tried() -> None:
    text = run_words.summary(saved([site()], plans=[MADE], events=EVENTS))
    assert 'plan="auto": 1 situation seen, 1 plan tried; the best gained 25.0%.' in text
    assert "12.0 s rank 3 50 ms 3f9a01c2 plan followed 40 ms 30 ms 25.0%" in " ".join(text.split())
    assert 'plan="auto"' not in run_words.summary(saved([site()]))


def test_every_outcome_of_plan_auto_has_words() -> None:
    outcomes = [*typing.get_args(records.Outcome)]
    run = saved([site()], events=[{"at_s": 1.0, "text": "", "outcome": outcome} for outcome in outcomes])
    rows = run_words.events_table(run).splitlines()[2:]
    assert len({row.partition(" s")[2].strip() for row in rows}) == len(outcomes)


def test_a_process_that_is_gone_is_in_the_summary() -> None:
    gone = [{"process": 3, "at_s": 2.0, "has_left": False, "why": "process 3 has died: it was killed, or crashed"}]
    run = run_file.decode(Stats([site()], gone=gone).json().encode(), "run.json")
    assert "after 2.0 s: process 3 has died: it was killed, or crashed" in run_words.summary(run).splitlines()


def test_the_page_has_picture_and_tables_and_escapes_messages() -> None:
    page = run_page.html(WHOLE)
    assert page.startswith("<!doctype html>") and page.count("<svg ") == 1
    assert "a &lt;cut&gt;" in page and "a <cut>" not in page
    assert "plan followed" in page


def test_the_commands_write_and_print_it_all(tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run.json"
    Stats([site()], RAILS, [MADE], EVENTS, 20.0).save(run)
    outputs = {name: tmp_path / f"run.{name}" for name in ("svg", "html", "trace")}
    options = [f"--{name}={path}" for name, path in outputs.items()]
    options += [f"--save-plan={tmp_path / 'plan.json'}"]
    for _ in range(2):  # twice, as for a run that is still going on
        assert main(["report", str(run), *options, "--tensorboard", str(tmp_path / "logs")]) == 0
    assert outputs["svg"].read_text() == run_picture.svg(run_file.load(run))
    assert len([*(tmp_path / "logs").iterdir()]) == 1
    assert plan.load(tmp_path / "plan.json") == PLAN
    printed = capsys.readouterr().out
    for words in (
        "Calls of 64 KiB or more take several rails",
        f"follow plan {PLAN.hash[:8]}",
        "fenced",
        "1 plan tried",
    ):
        assert words in printed
    assert main(["report", str(run), "--json"]) == 0
    document = documents.document(capsys.readouterr().out)["run"]
    assert document["rails"][0]["fences"] == 1
    assert document["rails"][1]["shares"] == [[0, 0], [65536, 256]]
    assert [event["outcome"] for event in document["events"]] == ["begun", "followed"]


def test_the_commands_refuse_what_they_cannot_do(tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run.json"
    Stats([site()]).save(run)
    refused = {
        ("report", str(run), "--save-plan", str(tmp_path / "x.json")): 'no plan made by plan="auto" was in force',
        ("report", str(tmp_path / "none.json")): "cannot be read",
        ("report", str(run), "--svg", str(tmp_path / "none" / "x.svg")): "cannot be written",
    }
    for args, message in refused.items():
        assert main([*args]) == 1
        error = capsys.readouterr().err
        assert message in error and "Cure: " in error
