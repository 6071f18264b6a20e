"""A newcomer's tools: the documents, an empty folder, and a shell that knows `jaxcomm` and `python` beside its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.processes import fork_server
from tests.quick_compilation import xla_flag

ROOT = Path(__file__).parents[2]
DEADLINE_S = 300


def blocks(document: str, language: str = "") -> list[str]:
    """The fenced blocks of a document of the repository that are in a language, without their fences."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[str]:
    """The lines of a text that call `jaxcomm`, each with the lines that continue it."""
    return [line.strip() for line in text.replace("\\\n", "").splitlines() if line.strip().startswith("jaxcomm ")]


def shell(line: str, folder: Path, imported: Sequence[str] = ()) -> str:
    """The output of a line typed in the folder; it must succeed, and print no error.

    Its Python begins as a newcomer's does, or is forked from a process that has imported some modules.
    """
    python = fork_server.python(*imported) if imported else sys.executable
    programs = folder / ".programs"
    programs.mkdir(exist_ok=True)
    for name, words in {"jaxcomm": "-m jaxcomm.cli ", "python": ""}.items():  # this checkout's, installed or not
        program = programs / name
        program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{python}" {words}"$@"\n')
        program.chmod(0o755)
    bare = {"HOME": str(folder), "PATH": os.pathsep.join([str(programs), "/usr/bin", "/bin", "/usr/sbin", "/sbin"])}
    bare |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": xla_flag()}  # as in conftest.py
    found = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=bare, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert found.returncode == 0 and "Traceback" not in found.stderr, f"{line}\n{found.stdout}{found.stderr}"
    return found.stdout
