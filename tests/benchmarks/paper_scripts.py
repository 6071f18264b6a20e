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
