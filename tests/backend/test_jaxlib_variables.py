"""When jaxlib loads the library, and the line that says why it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jaxcomm.backend import jaxlib_variables
from jaxcomm.cli import main
from tests.cli import documents

PTH = (Path(jaxlib_variables.__file__).parent / "jaxcomm.pth").read_text()


def test_variables_are_set_where_the_library_can_be_loaded() -> None:
    found: dict[str, str] = {}
    assert jaxlib_variables.turn_on(found)
    assert found == {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi", "MPITRAMPOLINE_LIB": str(jaxlib_variables.LIBRARY)}
    assert jaxlib_variables.is_on(found)
    assert jaxlib_variables.turn_on(found)  # again


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"MPITRAMPOLINE_LIB": "/mine.so"}, "names another library, /mine.so"),
        ({"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}, "IMPLEMENTATION is gloo"),
    ],
)
def test_what_a_user_has_set_stays(found: dict[str, str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = dict(found)
    assert not jaxlib_variables.turn_on(found)
    assert found == before
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_a_missing_library_leaves_gloo(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jaxlib_variables, "LIBRARY", tmp_path / "none.so")
    found: dict[str, str] = {}
    assert not jaxlib_variables.turn_on(found)
    assert found == {} and "none.so is missing" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["0.10.1", "0.13.0", "0.9"])
def test_another_jaxlib_leaves_gloo(
    version: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jaxlib_variables.metadata, "version", lambda name: version)
    assert not jaxlib_variables.turn_on({})
    assert f"jaxlib {version} has not been tried" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "on"),
    [("1", True), ("True", True), ("0", False), ("", False), ("false", False), ("off", False), ("oui", False)],
)
def test_the_pth_file_asks_the_environment(value: str, on: bool) -> None:
    script = PTH + "import os, sys; print(os.environ.get('MPITRAMPOLINE_LIB', ''), 'jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{script}"],
        env={"JAXCOMM_EVERY_COLLECTIVE": value, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == [*([str(jaxlib_variables.LIBRARY)] if on else []), "False"], done.stderr
    assert ("JAXCOMM_EVERY_COLLECTIVE is 'oui'" in done.stderr and "Cure: " in done.stderr) == (value == "oui")


@pytest.mark.parametrize("asked", ["by the option", "by the variables"])
def test_launch_gives_several_devices_a_large_pool(
    asked: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    if asked == "by the variables":
        for name, value in jaxlib_variables.variables().items():
            monkeypatch.setenv(name, value)
    option = ["--every-collective"] if asked == "by the option" else []
    assert main(["launch", "-n", "2", "--devices-per-process", "2", *option, "--dry-run", "--json", __file__]) == 0
    processes = documents.document(capsys.readouterr().out)["processes"]
    assert [each["environment"]["PJRT_NPROC"] for each in processes] == [str(jaxlib_variables.THREADS)] * 2


def test_one_process_without_distributed_runs_as_before() -> None:
    script = "import jax; print(jax.jit(lambda x: x + 1)(1.0))"
    done = subprocess.run(
        [sys.executable, "-c", script], env=jaxlib_variables.variables(), capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "2.0\n", done.stderr
