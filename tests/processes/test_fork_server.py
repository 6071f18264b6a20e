"""Programs that a server forks behave as if Python had run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import fork_server

PRINTS = """
import os, sys
print(__name__, sys.argv[1:], os.getcwd(), os.environ["MINE"], sys.stdin.read(), "json" in sys.modules)
print("error", file=sys.stderr)
"""


@pytest.fixture(scope="module")
def python() -> str:
    return fork_server.python("json")


def run(python: str, folder: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(code)
    environment = {**os.environ, "MINE": "mine"}
    return subprocess.run(
        [python, "program.py", *words], cwd=folder, env=environment, input="typed", capture_output=True, text=True
    )


def test_it_has_its_own_streams_folder_and_environment(python: str, tmp_path: Path) -> None:
    found = run(python, tmp_path, PRINTS, "a", "b")
    assert found.stdout == f"__main__ ['a', 'b'] {tmp_path} mine typed True\n"
    assert (found.stderr, found.returncode) == ("error\n", 0)


def test_errors_are_printed_at_once(python: str, tmp_path: Path) -> None:
    found = run(python, tmp_path, "import os, sys; print('error', file=sys.stderr); os._exit(0)")
    assert found.stderr == "error\n"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(3)", 3),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.abort()", -6),
    ],
    ids=["exit", "error", "killed", "aborts"],
)
def test_it_ends_as_it_would(python: str, tmp_path: Path, code: str, status: int) -> None:
    found = run(python, tmp_path, code)
    assert found.returncode == status
    assert ("ZeroDivisionError" in found.stderr) == (code == "1 / 0")


def test_it_is_killed_with_who_waits_for_it(python: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import time; print('runs', flush=True); time.sleep(600)")
    waits = subprocess.Popen([python, "program.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert waits.stdout and waits.stdout.readline() == "runs\n"
    waits.kill()
    assert waits.communicate(timeout=60) == ("", None)  # which ends when nobody can write any more


def test_what_it_starts_is_forked_too_but_for_other_uses_of_python(python: str, tmp_path: Path) -> None:
    starts = "import subprocess, sys; print(subprocess.check_output([sys.executable, *sys.argv[1:]], text=True))"
    (tmp_path / "other.py").write_text("import sys; print('json' in sys.modules)")
    assert run(python, tmp_path, starts, "other.py").stdout.strip() == "True"
    assert run(python, tmp_path, starts, "-c", "import sys; print(sys.executable)").stdout.strip() == sys.executable
