"""`jaxcomm.backend.use()` in a program that has imported JAX: the collectives are jaxcomm's up to the first device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxcomm.backend import jaxlib_variables, loaded_jaxlib

JOB = """
import jax
{first}
import jaxcomm
{second}
import numpy as np
from jax.experimental import multihost_utils

for _ in range(3):
    multihost_utils.process_allgather(np.ones(5))
jaxcomm.backend.use()  # once more is nothing new
print("ROWS", *{{site["name"] for site in jaxcomm.stats()}})
"""
USE, JOIN = "jaxcomm.backend.use()", "jax.distributed.initialize()"


def without_variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in jaxlib_variables.variables()}


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [("", f"{USE}; {JOIN}"), (JOIN, USE)], ids=["before", "after"])
def test_use_after_jax_is_imported_carries_collectives(first: str, second: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(JOB.format(first=first, second=second))
    done = subprocess.run(
        [sys.executable, "-m", "jaxcomm.cli", "launch", "-n", "2", str(program)],
        env=without_variables(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all-gather") == 2, done.stdout + done.stderr
    assert "JAX keeps" not in done.stderr


def test_use_after_the_first_device_is_one_line() -> None:
    script = (
        "import jax, jaxcomm.backend; jax.devices(); jaxcomm.backend.use(); "
        "print(jax.config.jax_cpu_collectives_implementation, jax.jit(lambda x: x + 1)(1.0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=without_variables(), capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "gloo 2.0\n", done.stderr
    assert done.stderr.count("\n") == 1 and "JAX has its devices already" in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("_SYMBOL_TABLE", -1, "has no symbols"),
        ("_INITIALIZE", "another_name", "has no another_name"),
        ("_mapped", lambda path: [], "is not loaded from"),
    ],
)
def test_another_jaxlib_keeps_gloo(
    name: str, value: object, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in jaxlib_variables.variables():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(loaded_jaxlib.jax_compat, "has_devices", lambda: False)
    monkeypatch.setattr(loaded_jaxlib, name, value)
    jaxlib_variables.use()
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    assert not jaxlib_variables.is_on()
