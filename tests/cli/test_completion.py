"""Shells complete commands, the commands of a group, options and files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from jaxcomm.cli import main
from jaxcomm.cli.dispatch import COMMANDS

Capture = pytest.CaptureFixture[str]

COMPLETIONS = {
    "--": "--help --version --print-completion",
    "--print-completion ": "bash zsh fish",
    "pro": "profile",
    "profile ": "drop-bound import step",
    "testbed r": "run",
    "simulate events --ran": "--ranks",
    "launch --transport ": "auto shm tcp udp",
    "plan measured.j": "measured.json",
    "what-if --no-s": "--no-straggler",
}


def test_bash_completes(tmp_path: Path, capsys: Capture) -> None:
    assert main(["--print-completion", "bash"]) == 0
    lines = [capsys.readouterr().out]
    (tmp_path / "measured.json").touch()
    for words in COMPLETIONS:
        split = ["jaxcomm", *words.split(" ")]
        quoted = " ".join(f"'{word}'" for word in split)
        lines += [f"COMP_WORDS=({quoted}); COMP_CWORD={len(split) - 1}; _shtab_jaxcomm; echo ${{COMPREPLY[*]}}"]
    done = subprocess.run(["bash", "-c", "\n".join(lines)], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert dict(zip(COMPLETIONS, done.stdout.splitlines(), strict=True)) == COMPLETIONS, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_scripts_of_other_shells_name_every_command(shell: str, capsys: Capture) -> None:
    assert main(["--print-completion", shell]) == 0
    text = capsys.readouterr().out
    assert all(word in text for name in COMMANDS for word in name.split())


@pytest.mark.parametrize("words", [[], ["tcsh"]], ids=str)
def test_other_shells_are_bad_usage(words: list[str], capsys: Capture) -> None:
    assert main(["--print-completion", *words]) == 2
    assert "Cure: one of bash, zsh, fish." in capsys.readouterr().err
