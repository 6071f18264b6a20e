"""`--json`: one object of a documented kind on standard output, and errors as JSON on standard error."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxcomm import plan
from jaxcomm.cli import main
from jaxcomm.cli.dispatch import COMMANDS
from tests.cli import documents
from tests.collectives.plans import SPECS, selecting

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]
LISTED = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", (ROOT / "docs" / "reference" / "json.md").read_text(), re.M))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_json(command: str, capsys: Capture) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert "--json" in capsys.readouterr().out


def test_the_page_lists_every_kind_and_its_commands() -> None:
    assert set(LISTED) == {path.stem for path in documents.SCHEMAS.glob("*.json")}
    named = {name for text in LISTED.values() for name in re.findall(r"`jaxcomm ([a-z -]+?)(?: --[a-z-]+)?`", text)}
    assert named == set(COMMANDS)


@pytest.mark.parametrize("kind", LISTED)
def test_a_schema_has_the_kind_and_the_version(kind: str) -> None:
    properties = documents.schema(kind)["properties"]
    assert (properties["kind"], properties["version"]) == ({"const": kind}, {"const": 1})


PRINTED = {
    "explain plan.json": "plan",
    "verify plan.json": "proofs",
    "export plan.json --to msccl-xml --out exported": "export",
    "simulate --ranks 4 --sizes 1KiB": "simulation",
    "simulate --ranks 4 --sizes 1KiB --collective all_gather": "simulation",
    "simulate events --ranks 4 --sizes 1KiB --repeats 1": "simulated-events",
    "profile --dry-run": "profile-dry-run",
    "launch -n 2 --dry-run sh": "launch",
    "testbed run racks.toml --dry-run -- sh": "testbed-dry-run",
    "check --dry-run": "check-dry-run",
    "check --cpu --dry-run": "check-dry-run",
}


@pytest.mark.parametrize("words", PRINTED)
def test_a_command_prints_an_object_of_its_kind(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    plan.save(selecting(SPECS["ring"], SPECS["hybrid"], 0.009), "plan.json")
    command = next(name for name in sorted(COMMANDS, reverse=True) if words.startswith(name))
    assert main([*command.split(), "--json", *words[len(command) :].split()]) == 0
    assert documents.document(capsys.readouterr().out)["kind"] == PRINTED[words]


@pytest.mark.parametrize(
    ("words", "kind", "cure", "code"),
    [
        ("plan nowhere.json --json", "ProfileError", "check the path.", 1),
        ("verify --json", "JaxcommError", "name a plan file, or --schedule KIND, or --all-schedules", 1),
        ("plan --json", "CommandError", "see `jaxcomm plan --help`.", 2),
        ("simulate --sizes much --json", "CommandError", "see `jaxcomm simulate --help`.", 2),
        ("walk --json", "CommandError", None, 2),
    ],
)
def test_an_error_is_one_line_of_json(words: str, kind: str, cure: str | None, code: int, capsys: Capture) -> None:
    assert main(words.split()) == code
    captured = capsys.readouterr()
    assert not captured.out and captured.err.count("\n") == 1
    error = documents.document(captured.err)
    assert (error["kind"], error["error"], error["cure"], error["exit_code"]) == ("error", kind, cure, code)


def test_a_failed_check_prints_its_result_and_its_error(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxcomm import schedules

    half = schedules.ring(4).table()[:12]  # the ring's ReduceScatter alone
    wrong = schedules.Schedule.from_table(half, kind="ring", ranks=4, num_chunks=4)
    monkeypatch.setattr(schedules, "ring", lambda ranks: wrong)
    assert main(["verify", "--schedule", "ring", "--ranks", "4", "--json"]) == 1
    captured = capsys.readouterr()
    assert documents.document(captured.out)["failed"] == 1
    assert documents.document(captured.err)["message"].startswith("1 of 1 not proved")


def test_the_json_of_a_program_is_not_that_of_launch() -> None:
    words = [sys.executable, "-m", "jaxcomm.cli", "launch", "-n", "1", "--plan", "x", "--", "sh", "--json"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert found.returncode == 1 and found.stderr.startswith("error: --plan goes with --every-collective")


def test_infinity_is_no_json() -> None:
    from jaxcomm.cli.common import output

    with pytest.raises(ValueError, match="not JSON compliant"):
        output.print_json("bench", {"ratio": float("inf")})
    assert json.loads((documents.SCHEMAS / "bench.json").read_text())["title"] == "jaxcomm bench"
