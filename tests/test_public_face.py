"""`import jaxcomm`: what it offers, and what it does not import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import jaxcomm


def test_every_name_is_there() -> None:
    assert set(jaxcomm.__all__) <= set(dir(jaxcomm))
    for name in jaxcomm.__all__:
        assert getattr(jaxcomm, name) is not None
    with pytest.raises(AttributeError, match="module 'jaxcomm' has no attribute 'psums'"):
        jaxcomm.psums  # noqa: B018


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import jaxcomm", ["jax", "numpy", "pydantic", "ortools"]),
        ("import jaxcomm; jaxcomm.schedules.ring(4); jaxcomm.plan.load", ["jax", "ortools"]),
        ("import jaxcomm; jaxcomm.psum", ["ortools", "flax", "matplotlib"]),
    ],
)
def test_imports_are_lazy(statement: str, absent: list[str]) -> None:
    script = f"{statement}\nimport sys\nprint([name for name in {absent} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
