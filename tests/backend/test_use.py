"""`jaxcomm.backend.use()` in a program that has imported JAX: the collectives are jaxcomm's up to the first device."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jax._src import xla_bridge

from jaxcomm.backend import gloo_replacement, jaxlib_variables, loaded_jaxlib

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


def launched(folder: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    file = folder / "program.py"
    file.write_text(program)
    return subprocess.run(
        [sys.executable, "-m", "jaxcomm.cli", "launch", "-n", "2", *options, str(file)],
        env=without_variables(),
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [("", f"{USE}; {JOIN}"), (JOIN, USE)], ids=["before", "after"])
def test_use_after_jax_is_imported_carries_collectives(first: str, second: str, tmp_path: Path) -> None:
    done = launched(tmp_path, JOB.format(first=first, second=second))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all-gather") == 2, done.stdout + done.stderr
    assert "JAX keeps" not in done.stderr


ASKS_GLOO = """
import os
{variable}
import jax
{before}
jax.distributed.initialize()
{after}
import numpy as np
from jax.experimental import multihost_utils

multihost_utils.process_allgather(np.ones(5))
import jaxcomm
print("ROWS", *{{site["name"] for site in jaxcomm.stats()}})
"""
GLOO = 'jax.config.update("jax_cpu_collectives_implementation", "gloo")'
VARIABLE = 'os.environ["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"'


@pytest.mark.slow
@pytest.mark.parametrize("place", ["variable", "before", "after"])
def test_a_program_that_asks_for_gloo_is_carried(place: str, tmp_path: Path) -> None:
    lines = {"variable": "", "before": "", "after": ""} | {place: VARIABLE if place == "variable" else GLOO}
    done = launched(tmp_path, ASKS_GLOO.format(**lines), "--every-collective")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("all-gather") == 2, done.stdout + done.stderr


@pytest.mark.slow
def test_gloo_asked_for_after_use_is_carried(tmp_path: Path) -> None:
    done = launched(tmp_path, JOB.format(first="", second=f"{USE}; {GLOO}; {JOIN}"))
    assert done.stdout.count("all-gather") == 2, done.stdout + done.stderr


def test_jax_asks_jaxlib_for_gloo_by_the_replaced_name() -> None:
    assert f"_jax.{gloo_replacement.MAKE_GLOO}(" in inspect.getsource(xla_bridge.make_cpu_client)
    assert callable(getattr(sys.modules[gloo_replacement.JAXLIB], gloo_replacement.MAKE_GLOO))


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
