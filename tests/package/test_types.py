"""mypy and pyright accept a user's program, and refuse each of a list of mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM, MISTAKES = (ROOT / f"tests/package/user_{name}.py" for name in ("program", "mistakes"))

# mypy reads only the arrays of JAX, and no packages that users of jaxcomm do not see: these take most of its time.
MYPY = """
[mypy]
strict = True
[mypy-jaxcomm.*]
follow_imports = silent
[mypy-jax._src.*,jaxlib.*,matplotlib.*,ml_dtypes.*,rich.*]
follow_imports = skip
[mypy-jax._src.basearray]
follow_imports = normal
"""
PYRIGHT = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT)], "include": [str(PROGRAM), str(MISTAKES)]}


@pytest.mark.slow
def test_checkers_accept_the_program_and_refuse_each_mistake(tmp_path: Path, cache: pytest.Cache) -> None:
    (tmp_path / "mypy.ini").write_text(MYPY)
    (tmp_path / "pyright.json").write_text(json.dumps(PYRIGHT))
    commands = {
        "mypy": [
            "--config-file",
            tmp_path / "mypy.ini",
            "--cache-dir",
            cache.mkdir("mypy"),
            "--output=json",
            PROGRAM,
            MISTAKES,
        ],
        "basedpyright": ["--project", tmp_path / "pyright.json", "--pythonpath", sys.executable, "--outputjson"],
    }
    running = {
        name: subprocess.Popen([sys.executable, "-m", name, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for name, arguments in commands.items()
    }
    outputs = {name: each.communicate(timeout=300)[0] for name, each in running.items()}
    by_mypy = [json.loads(line) for line in outputs["mypy"].splitlines()]
    by_pyright = json.loads(outputs["basedpyright"])["generalDiagnostics"]
    errors = [("mypy", ROOT / each["file"], each["line"], each) for each in by_mypy if each["severity"] == "error"]
    errors += [
        ("pyright", Path(each["file"]), each["range"]["start"]["line"] + 1, each)
        for each in by_pyright
        if each["severity"] == "error"
    ]
    assert [error for error in errors if error[1] != MISTAKES] == []
    lines = MISTAKES.read_text().splitlines()
    mistakes = {*range(next(i for i, line in enumerate(lines) if line.startswith("def mistakes")) + 2, len(lines) + 1)}
    for checker in "mypy", "pyright":
        refused = {line for name, _, line, _ in errors if name == checker}
        assert {n: lines[n - 1] for n in mistakes ^ refused} == {}, checker
