"""Dumps of failed calls: how a process writes them, and whom `jaxcomm report` finds in those of several processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from jaxcomm import dump, ffi
from jaxcomm.cli import main
from jaxcomm.errors import JaxcommError
from jaxcomm.profile import dump_file
from jaxcomm.report.dumps.incident import incident
from jaxcomm.report.dumps.words import culprit_text, summary
from tests.cli import documents
from tests.report.dumped import WAITING, call, dumped

Capture = pytest.CaptureFixture[str]
LATER = call([None, None, 0.0], at_s=112.0, took_s=0.0)
MODEL = "DeadlineError: pmax #40 over 'model'"
OTHER = call([None, None, 0.0], name="pmax", axes="model", id=9, number=40, error=MODEL)
LAST = {
    "process": 2,
    "device": 2,
    "id": 6,
    "at_s": 95.0,
    "is_open": True,
    "call": "psum over 'data', f32[8], at a.py:3",
}
GONE = {
    "process": 2,
    "at_s": 101.0,
    "has_left": False,
    "why": "process 2 has died: it was killed, or crashed.\n  Cure: x",
}
LEFT = {"process": 1, "at_s": 100.0, "has_left": True, "why": "process 1 has left"}
UNLIKE = [[0, "psum over 'data'"], [2, "pmax over 'data'"]]
MISMATCH = {"text": "MismatchError: x", "kind": "MismatchError"}
ALONE = dumped(0, call([0.0, None, 0.1], id=0, processes=[]), processes=1)

# The dumps; the culprit's ranks and processes; words of the reason, and of the table.
CASES: dict[str, tuple[list[dict[str, Any]], tuple[int, ...], tuple[int, ...], str, str]] = {
    "a rank that comes after the deadline": (
        [dumped(2, LATER, at_s=112.0), *WAITING],
        *((2,), (2,), "it came 12 s after the first rank"),
        "2 2 node-2 after 12 s, too late this call",
    ),
    "a process that hangs elsewhere": (
        [WAITING[0] | {"devices": [LAST]}, WAITING[1]],
        *((2,), (2,), "it wrote no dump, so it hangs outside of jaxcomm's calls"),
        "no dump; in psum over 'data', f32[8], at a.py:3, for 15 s",
    ),
    "a process that is in no call and has heard of it": (
        [*WAITING, dumped(2, call([0.0, 0.5, None], at_s=100.2), at_s=110.5)],
        *((2,), (2,), "it was in no call of jaxcomm"),
        "2 2 node-2 no no call",
    ),
    "a process without any call": (WAITING, (2,), (2,), "it wrote no dump", "no dump, and no call is known"),
    "a killed process, and one that ends as a consequence": (
        [WAITING[0] | {"gone": [LEFT, GONE]}, WAITING[1]],
        *((2,), (2,), "process 2 has died: it was killed, or crashed."),
        "after 101.0 s: process 2 has died",
    ),
    "a process in another call": (
        [*WAITING, dumped(2, OTHER, text=MODEL, at_s=111.0)],
        *((2,), (2,), "it was in another call: pmax #40 over 'model' (16 MiB, plan ring)"),
        "2 2 node-2 no pmax #40 over 'model'",
    ),
    "different calls": (
        [
            dumped(0, call([0.0, 0.0, 0.0], error="MismatchError: x"), error=MISMATCH | {"calls": UNLIKE}),
            dumped(1, error=MISMATCH | {"calls": [[1, "psum over 'data'"], [2, "pmax over 'data'"]]}, at_s=111.0),
        ],
        *((2,), (2,), "rank 2 is in pmax over 'data'"),
        "after 0 s",
    ),
    "one process": ([ALONE], (1,), (0,), "it had not arrived", "1 0 node-0 no no call"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_culprit_is_found(case: str) -> None:
    records, ranks, processes, why, row = CASES[case]
    dumps = [dump_file.KIND.validate(json.loads(json.dumps(each)), "dump.json") for each in records]
    found = incident(dumps)
    assert found.first.process == 0
    assert found.culprit is not None
    assert (found.culprit.ranks, found.culprit.processes) == (ranks, processes)
    text = summary(found)
    assert why in culprit_text(found.culprit) and why in text
    assert row in " ".join(text.split()), text


def test_a_failure_without_a_culprit_is_told() -> None:
    text = "JaxcommError: no memory"
    found = incident([dump_file.KIND.validate(dumped(0, text=text, error={"text": text, "kind": "JaxcommError"}), "x")])
    assert found.culprit is None and not found.places
    assert "the dumps name no culprit; read the error." in summary(found) and text in summary(found)


def test_the_command_reports_dumps_as_text_page_and_json(tmp_path: Path, capsys: Capture) -> None:
    paths = [str(tmp_path / f"process-{each['process']}-0.json") for each in WAITING]
    for path, each in zip(paths, WAITING, strict=True):
        Path(path).write_text(json.dumps(each))
    page = tmp_path / "dumps.html"
    assert main(["report", *paths, "--html", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "2 dumps of a job of 3 processes." in printed and "Likely culprit: rank 2 (process 2): " in printed
    assert "Likely culprit: rank 2" in page.read_text() and page.read_text().startswith("<!doctype html>")
    assert main(["report", *paths, "--json"]) == 0
    document = documents.document(capsys.readouterr().out)
    assert document["culprit"]["ranks"] == [2] and [each["is_missing"] for each in document["ranks"]] == [
        False,
        False,
        True,
    ]
    (tmp_path / "cut.json").write_text(Path(paths[0]).read_text()[:-5])
    (tmp_path / "odd.json").write_text(json.dumps(WAITING[0] | {"calls": 3}))
    for words, problem in {
        (*paths, "--svg", "x.svg"): "--svg is for a saved run",
        (paths[0], str(tmp_path / "cut.json")): "cut.json: is not JSON",
        (str(tmp_path / "odd.json"),): "odd.json: calls is 3",
        (str(tmp_path / "none.json"),): "cannot be read",
    }.items():
        assert main(["report", *words]) == 1
        error = capsys.readouterr().err
        assert problem in error and "Cure: " in error


def failing(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Makes the core report `count` failures, the last of which never comes."""
    failure = {"message": "psum #1 is late", "record": {"error": "DeadlineError", "missing": [1], "seconds": 1.0}}
    monkeypatch.setattr(ffi, "await_failure", lambda seen, *, waits: failure if seen < count else None)


def test_a_process_writes_bounded_dumps_that_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, 2)
    dumps = dump._Dumps(tmp_path)
    dumps.write_rest()
    dumps.write_rest()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["process-0-0.json", "process-0-1.json"]
    found = dump_file.load(str(tmp_path / "process-0-0.json"))
    assert (found.process, found.pid, found.error.missing) == (0, os.getpid(), [1])
    failing(monkeypatch, 1000)
    dump._Dumps(tmp_path).follow()
    assert len([*tmp_path.iterdir()]) == 2 + dump._MOST_OF_RUN
    for i in range(dump._MOST_FILES):
        path = tmp_path / f"process-0-{i}.json"
        path.write_text("old")
        os.utime(path, (1000.0 - i,) * 2)
    dump._Dumps(tmp_path).follow()
    new = [int(path.stem.rpartition("-")[2]) for path in tmp_path.iterdir() if path.read_text() != "old"]
    assert sorted(new) == [*range(dump._MOST_FILES - dump._MOST_OF_RUN, dump._MOST_FILES)], "the oldest are replaced"


def test_a_dump_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing(monkeypatch, 1)
    dump._Dumps(tmp_path / "none").write_rest()
    assert "the dump of a failed call was not written: " in caplog.text and "cannot be written" in caplog.text
    (tmp_path / "file").touch()
    with pytest.raises(JaxcommError, match=r"JAXCOMM_DUMP is .*/file'; .* cannot be made a folder") as error:
        dump.start(str(tmp_path / "file"))
    assert "Cure: " in str(error.value)
