"""Control characters in the names of a plan, a profile or a run are escaped on the terminal and in pictures."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from jaxcomm import plan, planner, profile
from jaxcomm.cli import main
from jaxcomm.errors import PlanError
from jaxcomm.files import mistake
from jaxcomm.log import printable, say
from jaxcomm.profile import Profile
from jaxcomm.report import drawing
from jaxcomm.report.plan import explanation

EVIL = 'a\x1b]0;title\x07\x1b[31m\x9b2J\x00\r\n\x7f\u202e\u2028<b>&"'
SHOWN = r"a\x1b]0;title\x07\x1b[31m\x9b2J\x00\r\n\x7f\u202e\u2028<b>&" + '"'
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]")
Capture = pytest.CaptureFixture[str]


def test_each_character_is_shown_as_its_escape() -> None:
    assert printable(EVIL) == SHOWN
    assert printable("ends of\nlines\tstay", keep="\n\t") == "ends of\nlines\tstay"
    assert printable("Grüße, 水, 👋🏽, \\x1b") == "Grüße, 水, 👋🏽, \\x1b"
    assert printable("\ud800") == "\\ud800"


def evil_run() -> dict[str, Any]:
    span = {"at_s": 0.0, "length_s": 1.0, "calls": 5, "after_arrival_s": 0.04, "arrivals": [0.0, 0.05]}
    site: dict[str, Any] = {"name": EVIL, "axes": EVIL, "plan": EVIL, "ranks": 2, "bytes": 4096, "calls": 5}
    site |= {
        "failed": 0,
        "work_s": [],
        "transfer_s": 1.0,
        "early_bytes_share": 0.0,
        "wait_s": [0.1] * 2,
        "late": [0, 5],
    }
    site |= {"arrivals": [[0.0, 0.05]] * 2, "after_arrival_s": [0.04] * 2, "spans": [span]}
    change = {"at_s": 0.5, "is_open": False, "why": EVIL}
    carried = {"at_s": 0.0, "length_s": 1.0, "bytes": 10**6, "bytes_per_s": 2e6, "share": 512}
    rail = {"process": 1, "rail": EVIL, "is_open": False, "fences": 1, "bytes": 10, "shares": [[0, 512]]}
    rail |= {"changes": [change], "spans": [carried]}
    event = {"at_s": 0.5, "text": EVIL, "outcome": "followed", "late": [1], "plan": EVIL}
    follows = {"axes": [EVIL], "plan": EVIL, "since_s": 0.0, "ranks": 2, "roles": {EVIL: 1}, "file": {}}
    follows |= {"collectives": [{"min_bytes": 0, "schedule": EVIL}]}
    gone = {"process": 1, "at_s": 0.5, "has_left": False, "why": EVIL}
    run = {"format": "jaxcomm-stats", "version": 1, "written": "2026-01-01T00:00:00Z", "at_s": 1.0, "sites": [site]}
    return run | {"rails": [rail], "gone": [gone], "plans": [follows], "events": [event]}


def evil_profile() -> Profile:
    rails = [{"name": f"{EVIL}{i}", "transport": EVIL} for i in range(2)]
    latency = [{"bytes": 2**power, "seconds": 1e-3 + 2**power * 1e-9} for power in (10, 16, 22, 28)]
    document: dict[str, Any] = {"format": "jaxcomm-profile", "version": 1, "ranks": 4}
    document |= {"link": {"alpha_s": 1e-5, "beta_s_per_byte": 1e-9, "source": EVIL}}
    document |= {"arrivals": [[0.0, 0.0, 0.0, 0.05]] * 20, "hosts": [f"{EVIL}{rank}" for rank in range(4)]}
    document |= {"rails": [rail | {"latency": latency} for rail in rails]}
    document |= {"racks": [{"name": f"{EVIL}{i}", "ranks": [2 * i, 2 * i + 1], "uplink": 4.0} for i in range(2)]}
    document |= {"buckets": [{"name": f"{EVIL}{i}", "bytes": 2**20, "ready_s": 0.01 * i} for i in range(4)]}
    return profile.validate(document | {"provenance": {"source": EVIL, "tool": EVIL, "created": EVIL}}, "evil")


def check_printed(capsys: Capture) -> str:
    shown = capsys.readouterr()
    for text in shown:
        assert not CONTROL.search(text), CONTROL.search(text)
    return shown.out


def check_picture(path: Path) -> None:
    text = path.read_text()
    assert not CONTROL.search(text)
    assert "\\x1b" in text
    ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])


def test_run(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "run.json").write_text(json.dumps(evil_run()))
    run, svg, html = (str(tmp_path / name) for name in ("run.json", "run.svg", "run.html"))
    main(["report", run, "--svg", svg, "--html", html, "--trace", str(tmp_path / "trace.json")])
    assert "\\x1b" in check_printed(capsys)
    for picture in (svg, html):
        check_picture(Path(picture))
    assert not CONTROL.search((tmp_path / "trace.json").read_text())


@pytest.mark.slow
def test_plan(tmp_path: Path, capsys: Capture) -> None:
    made = planner.plan(evil_profile())
    plan.save(made, tmp_path / "plan.json")
    profile.save(evil_profile(), tmp_path / "profile.json")
    file, measured, step = (str(tmp_path / name) for name in ("plan.json", "profile.json", "step.svg"))
    assert made.step is not None and made.rails is not None and made.groups is not None
    for words in (
        ["explain", file, "--step-svg", step],
        ["plan", measured, "--dry-run"],
        ["profile", "import", measured, "--dry-run"],
        ["what-if", measured],
        ["verify", file],
    ):
        assert main(words) == 0, words
        check_printed(capsys)
    check_picture(Path(step))
    text = explanation.explanation(made)
    assert not CONTROL.search(text) and SHOWN in text


def test_errors_and_warnings(tmp_path: Path, capsys: Capture, caplog: pytest.LogCaptureFixture) -> None:
    document = json.loads(json.dumps(evil_run()))
    document["sites"][0]["ranks"] = 3  # invalid; the error repeats the site's name
    (tmp_path / "run.json").write_text(json.dumps(document))
    assert main(["report", str(tmp_path / "run.json")]) == 1
    check_printed(capsys)
    assert str(PlanError(mistake(EVIL, EVIL, "x"))) == f"{SHOWN}: {SHOWN}.\n  Cure: x."
    say(EVIL)
    assert not CONTROL.search(caplog.text)


def test_other_programs_keep_their_colours(capsys: Capture) -> None:
    assert main(["launch", "-n", "1", "--", sys.executable, "-c", "print(chr(27) + '[31mred')"]) == 0
    assert capsys.readouterr().out == "[0] \x1b[31mred\n"


def test_quotes_do_not_end_an_attribute() -> None:
    root = ElementTree.fromstring(drawing.document(1, 1, '" onload="x', []))
    assert root.get("aria-label") == '" onload="x' and root.get("onload") is None
