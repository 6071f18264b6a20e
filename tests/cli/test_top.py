"""`jaxcomm top`: once, as JSON, and live on a terminal until the job ends or the user quits."""

from __future__ import annotations

import os
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jaxcomm.cli import main, top
from tests.cli import documents
from tests.report.test_job import NOW

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> list[list]:
    """Returns the given findings of the readings, one after the other; the last one remains."""
    readings = [NOW]
    monkeypatch.setattr(top.HostsReader, "read", lambda self: readings.pop(0) if len(readings) > 1 else readings[0])
    return readings


def test_json_has_all_jobs_or_the_one_that_is_named(running: list, capsys: Capture) -> None:
    assert main(["top", "--json"]) == 0
    assert [job["name"] for job in documents.document(capsys.readouterr().out)["jobs"]] == [
        "10.0.0.1:7600",
        "77",
    ]
    for name in ("10.0.0.1:7600", "51"):
        assert main(["top", name, "--json"]) == 0
        [job] = documents.document(capsys.readouterr().out)["jobs"]
        assert job["sites"][0]["late"]["rank"] == 2 and [each["rail"] for each in job["rails"]] == ["eth0", "eth1"]


@pytest.mark.parametrize("words", [["top"], ["top", "--once"]], ids=" ".join)
def test_without_a_terminal_it_prints_all_jobs_once(
    words: list[str], running: list, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "process 77 on a, running 0:03" in text and "rank 2, 100%" in text and "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 60


def test_without_a_job_it_says_so(running: list, capsys: Capture) -> None:
    assert main(["top", "123456"]) == 1
    named = f"no job 123456 of yours runs on {os.uname().nodename}.\n  Cure: one of these: 10.0.0.1:7600, 77."
    assert named in capsys.readouterr().err
    running[0] = []
    assert main(["top"]) == 1
    assert "or none has reached its first collective.\n  Cure: start one" in capsys.readouterr().err


@contextmanager
def terminal(key: bytes) -> Iterator[list[bytes]]:
    """Standard input and output on a pseudo-terminal, where `key` is pressed when the first screen is complete.

    Yields the parts that are printed there.
    """
    there, here = os.openpty()
    termios.tcsetwinsize(here, (24, 80))
    printed: list[bytes] = []

    def read() -> None:
        while b"the end" not in b"".join(printed):
            was_complete = b"q ends" in b"".join(printed)
            printed.append(os.read(there, 4096))
            if b"q ends" in b"".join(printed) and not was_complete:
                os.write(there, key)

    reading = threading.Thread(target=read)
    reading.start()
    with (
        open(here, closefd=False) as keys,
        open(here, "w", closefd=False) as screen,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "stdin", keys)
        patch.setattr(sys, "stdout", screen)
        patch.setenv("TERM", "xterm")
        yield printed
        screen.write("the end")
        screen.flush()
        reading.join()
    os.close(here)
    os.close(there)


@pytest.mark.parametrize("key", ["", "q"], ids=["the job ends", "q"])
def test_the_live_view_ends_with_the_job_or_with_q(key: str, running: list) -> None:
    running += [NOW] * (50 if key else 1) + [[]]
    with terminal(key.encode()) as printed:
        before = termios.tcgetattr(sys.stdin)
        assert main(["top", "10.0.0.1:7600", "--interval", "0.1"]) == 0
        assert termios.tcgetattr(sys.stdin) == before
    text = b"".join(printed).decode()
    assert text.startswith("\x1b[?1049h") and "\x1b[?1049l" in text and "rank 2, 100%" in text
    assert ("The job 10.0.0.1:7600 has ended after 20 s." in text) == (not key)
