"""Long work says what it does and how long it took, also where standard error is no terminal."""

from __future__ import annotations

import re
import time

import pytest

from jaxcomm.cli import main
from jaxcomm.cli.common import progress

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """All work counts as long after 20 ms."""
    monkeypatch.setattr(progress, "_LONG_S", 0.02)


def long_work() -> None:
    with progress.Bar(3, "planning") as bar:
        bar.update()
        time.sleep(0.1)


def test_long_work_prints_a_line_and_its_time(quick: None, capsys: Capture) -> None:
    with progress.Bar(3, "planning"):
        printed = until_printed("planning …\n", capsys)
    captured = capsys.readouterr()
    assert printed == "planning …\n" and re.fullmatch(r"planning: \d+\.\d s\n", captured.err) and not captured.out


def until_printed(line: str, capsys: Capture) -> str:
    """Waits until a line is on standard error, and returns what is there."""
    printed = ""
    while line not in printed:
        time.sleep(0.01)
        printed += capsys.readouterr().err
    return printed


def test_short_work_prints_nothing(capsys: Capture) -> None:
    with progress.clock("reading"):
        pass
    assert capsys.readouterr().err == ""


def test_after_an_error_no_time_is_printed(quick: None, capsys: Capture) -> None:
    with pytest.raises(ValueError, match="bad"), progress.clock("reading"):
        until_printed("reading …\n", capsys)
        raise ValueError("bad")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["SLURM_PROCID", "OMPI_COMM_WORLD_RANK"])
def test_only_the_first_process_prints(
    name: str, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv(name, "1")
    long_work()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("as_json", [False, True])
def test_with_json_only_errors_are_printed(
    as_json: bool, quick: None, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    from jaxcomm.cli import verify

    monkeypatch.setattr(verify, "run", lambda args: long_work() or 0)
    assert main(["verify", *["--json"] * as_json]) == 0
    assert (capsys.readouterr().err == "") == as_json


def test_a_terminal_shows_a_bar_and_clears_it(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    with progress.Bar(2, "planning") as bar:
        time.sleep(0.11)  # updates are at least 0.1 s apart
        bar.update()
    shown = capsys.readouterr().err
    assert "planning:  50%|" in shown and shown.endswith("\r\x1b[K")
