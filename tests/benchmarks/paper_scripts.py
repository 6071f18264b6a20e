"""Loads the scripts that redo figures of papers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "papers"


def script(name: str) -> ModuleType:
    """`benchmarks/papers/NAME.py` as a module; it may import its neighbours."""
    spec = importlib.util.spec_from_file_location(f"{name}_figure", SCRIPTS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        spec.loader.exec_module(module)
    return module


def printed(module: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """The output of the script, which it also writes, beside a picture, into a new folder; and what it says aside."""
    module.main(["--out", str(folder / "new")])
    text, errors = capsys.readouterr()
    name = module.__name__.removesuffix("_figure")
    assert (folder / "new" / f"{name}.txt").read_text() == text
    assert (folder / "new" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    return text, errors
