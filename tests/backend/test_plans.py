"""All-reduces of unchanged programs follow a plan that is given, or that the run makes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxcomm import environment
from jaxcomm.backend import plans
from jaxcomm.cli import main
from jaxcomm.plan import encode, load
from jaxcomm.planner import plan
from tests.planner.profiles import made, on_rails
from tests.processes import fork_server
from tests.processes.auto_plan import profile

pytestmark = pytest.mark.slow

_REPORT = re.compile(r"^\[(\d)\] @report (.*)$", re.MULTILINE)


def launched(*words: str, **environment: str) -> tuple[dict[int, dict[str, Any]], str]:
    """The reports of each of four processes, and all that they wrote as errors."""
    done = subprocess.run(
        [sys.executable, "-m", "jaxcomm.cli", "launch", "-n", "4", "--transport", "tcp", "--every-collective", *words],
        cwd=fork_server.ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {int(process): json.loads(found) for process, found in _REPORT.findall(done.stdout)}, done.stderr


def test_a_given_plan_says_by_which_rails_processes_are_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = plan(on_rails(made(), eth0=(1e-5, 1e-9), eth1=(1e-5, 2e-9)))
    assert planned.rails is not None
    (tmp_path / "plan.json").write_text(encode(planned))
    asked: list[Any] = []
    monkeypatch.setattr("jaxcomm.distributed.connect.members.connected", lambda *words: asked.append(words))
    monkeypatch.setenv(environment.PLAN, str(tmp_path / "plan.json"))
    plans.start()
    plans.connected()
    monkeypatch.delenv(environment.PLAN)
    plans.start()
    plans.connected()
    assert asked == [((), planned.rails.planned(), ""), ((), None, "")]


@pytest.mark.parametrize("named", ["auto", "plan.json"])
def test_launch_names_a_file_by_its_whole_path_and_auto_as_it_is(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text(encode(plan(made())))
    assert main(["launch", "-n", "1", "--every-collective", "--plan", named, "--dry-run", "--json", __file__]) == 0
    (process,) = json.loads(capsys.readouterr().out)["processes"]
    assert process["environment"][environment.PLAN] == ("auto" if named == "auto" else str(tmp_path / named))


def test_a_given_plan_is_followed_and_named_where_it_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, saved = tmp_path / "plan.json", tmp_path / "run.json"
    file.write_text(encode(plan(profile(late=3))))
    name = load(file).hash[:8]
    reports, errors = launched("--plan", str(file), "-m", "tests.backend.planned", str(saved))
    expected = {"case": "planned", "wrong": [], "rows": {"4 ranks": name, "2 ranks": "direct"}, "plans": [name]}
    assert [reports[process] for process in range(4)] == [expected] * 4
    line = f"plan {name} is for 4 ranks: the program's own all-reduces over 2 ranks run what they would without a plan."
    assert errors.count(line) == 4, errors  # once in each process
    assert main(["report", str(saved)]) == 0
    assert re.search(rf"all-reduce +processes 0,1,2,3 +{name} +4 +117.2 KiB +3 ", capsys.readouterr().out)


def test_the_run_makes_a_plan_for_a_late_process_and_sums_stay_exact() -> None:
    for _ in range(3):  # beside other work, the links may be measured so wrong that no plan seems better
        reports, errors = launched("--plan", "auto", "-m", "tests.backend.auto_plan")
        assert [reports[process]["wrong"] for process in range(4)] == [0] * 4
        event = reports[0]["events"][-1]
        if event["outcome"] != "no plan":
            break
    assert event["outcome"] in ("followed", "taken back"), errors  # on this machine it need not gain
    assert event["late"] == [3]
    assert event["before_s"] > 0 and event["after_s"] > 0
    rows = {row["plan"]: row for row in reports[0]["rows"]}
    assert {*rows} == {"auto", event["plan"]}
    assert sum(row["calls"] for row in rows.values()) == reports[0]["steps"]
    for row in rows.values():
        assert (row["name"], row["axes"], row["ranks"]) == ("all-reduce", "processes 0,1,2,3", 4)
        assert row["late"].index(max(row["late"])) == 3
    for process in range(1, 4):  # all follow the same plan in the same calls
        calls = {row["plan"]: row["calls"] for row in reports[process]["rows"]}
        assert calls == {name: row["calls"] for name, row in rows.items()}
    assert "the links were measured" in errors


def test_a_given_plan_is_tried_beside_the_default_schedule(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(encode(plan(profile(late=3))))
    reports, errors = launched("--plan", str(file), "-m", "tests.backend.tried", JAXCOMM_TRIAL="1")
    assert [reports[process]["wrong"] for process in range(4)] == [0] * 4
    rows = [reports[process]["row"] for process in range(4)]
    outcome = rows[0]["trial"]["outcome"]
    assert outcome in ("kept", "dropped")
    assert [row["trial"]["outcome"] for row in rows] == [outcome] * 4
    assert len({row["early_calls"] for row in rows}) == 1
    assert (rows[0]["early_calls"] > rows[0]["calls"] / 2) == (outcome == "dropped")
    name = load(file).hash[:8]
    sentence = f"plan {name} {'gains' if outcome == 'kept' else 'shows no clear gain'} in its trial"
    assert errors.count(sentence) == 1, errors  # in the process that decides
