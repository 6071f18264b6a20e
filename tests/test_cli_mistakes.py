"""Mistakes at the command line: one clear error, an exit code, and nothing half done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxcomm import plan
from jaxcomm.cli import main
from jaxcomm.errors import JaxcommError

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulat"], "did you mean `jaxcomm simulate`?"),
        (["xyzzy"], "the commands are: demo, profile"),
        (["plan"], "the following arguments are required: profile"),
        (["plan", "p.json", "--min-gain", "200%"], "'200%' is not a share between 0 and 1"),
        (["simulate", "--sizes", "3fo"], "'3fo' is not a size; write for example 64KiB"),
        (["simulate", "--sizes", "0.4B"], "'0.4B' is not a size"),
        (["simulate", "--sizes", "2MiB..1MiB"], "runs backwards"),
        (["simulate", "--ranks", "8..4"], "'8..4'"),
        (["simulate", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["verify", "--schedule", "rings"], "invalid choice: 'rings'"),
        (["bench", "--late", "rank=3"], "write for example rank=3,ms=20"),
        (["bench", "--late", "rank=3,ms=0"], "write for example rank=3,ms=20"),
        (["bench", "--peer", "nccl"], "invalid choice: 'nccl'"),
        (["export", "plan.json", "--to", "nccl"], "invalid choice: 'nccl'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_is_2_and_says_what(words: list[str], said: str, capsys: Capture) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "nowhere.json"], "error: nowhere.json: cannot be read: No such file"),
        (["explain", "nowhere.json"], "error: nowhere.json: cannot be read: No such file"),
        (["verify", "nowhere.json"], "error: nowhere.json: cannot be read: No such file"),
        (["export", "nowhere.json", "--to", "mscclpp"], "error: nowhere.json: cannot be read: No such file"),
        (["profile", "import", "nowhere.log"], "error: nowhere.log: cannot be read: No such file"),
        (["verify"], "error: nothing to verify"),
        (["verify", "--schedule", "ring", "--ranks", "1"], "error: ring: ranks is 1; a collective needs at least 2"),
        (["simulate", "--ranks", "2048"], "error: --ranks goes from 2048 to 2048; it must stay in 2..1024"),
        (["simulate", "--gbps", "0"], "error: --alpha-us is 10, --gbps 0"),
        (["simulate", "--loss", "1%"], "error: --loss and --bound need runs message by message."),
        (["simulate", "--events", "--repeat", "0"], "--repeat is 0; it must be at least 1"),
        (["simulate", "--events", "--plot", "times.png"], "--events draws no --plot"),
        (["simulate", "--events", "--bound", "10%"], "error: --bound is 0.1, but no packet is ever lost."),
        (
            ["simulate", "--plot", "/nowhere/x.png", "--ranks", "8", "--sizes", "1KiB"],
            "error: /nowhere/x.png: cannot be",
        ),
        (["bench", "--devices", "1"], "error: --devices is 1; a collective needs at least 2"),
        (["bench", "--devices", "64"], "error: --devices is 64 but JAX started with 8 host devices"),
        (["bench", "--rounds", "0"], "error: --rounds is 0"),
        (["bench", "--devices", "100000"], "error: --devices is 100000; at most 1024"),
        (["bench", "--late", "rank=8,ms=1"], "error: --late names rank 8; with 8 devices the ranks are 0 to 7"),
        (["bench", "--late", "rank=3,ms=1", "--schedules", "ring:4"], "error: --schedules has 'ring:4'"),
        (["profile", "--inject", "rank=9,ms=1"], "error: inject names rank 9; the ranks are 0 to 7"),
        (["demo", "--late", "rank=8,ms=1"], "error: --late names rank 8"),
        (["demo", "--steps", "1"], "error: --steps is 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_1_with_one_clear_error(
    words: list[str], said: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(jax.devices()) == 8  # JAX runs: the commands cannot ask it for other devices any more
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    captured = capsys.readouterr()
    assert said in captured.err and "Traceback" not in captured.err and captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_in_a_process_of_its_own_has_the_exit_code_and_no_traceback() -> None:
    code = "import sys; from jaxcomm.cli import main; sys.exit(main(['plan', 'nowhere.json']))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr.startswith("error: nowhere.json: ")


def test_an_unexpected_exception_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(plan, "load", broken)
    with pytest.raises(ZeroDivisionError):
        main(["explain", "plan.json"])


def test_an_error_of_ours_is_a_mistake(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def broken(path: str) -> None:
        raise JaxcommError("it is so.\n  Cure: none")

    monkeypatch.setattr(plan, "load", broken)
    assert main(["explain", "plan.json"]) == 1
    assert capsys.readouterr().err == "error: it is so.\n  Cure: none\n"
