"""As if `jaxcomm check` had shown what sums over GPUs need, where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jaxcomm import environment
from jaxcomm.gpu import certificate, core

HERE = {"devices": ["GPU X"], "driver": "580.65", "jax": "0.11"}

# For a script in a process of its own, whose environment names the file.
AS_THERE = f"""
from jaxcomm.gpu import core
from jaxcomm.gpu import certificate
certificate.here = lambda: {HERE}
core.is_built = lambda: True
core.jax_has_it = lambda: False  # registers nothing with a backend
"""


def write(file: Path, uses: Sequence[str], made_for: dict[str, Any] = HERE) -> Path:
    """A certificate by which the sections of these uses have passed."""
    passed = {section: {"state": "passed"} for use in uses for section in certificate.NEEDS[use]}
    file.write_text(certificate.content(made_for, passed))
    return file


def use(monkeypatch: pytest.MonkeyPatch, folder: Path, *uses: str) -> Path:
    """Has this process find such a certificate, and be on the machine that it was made for."""
    file = write(folder / "check.json", uses)
    monkeypatch.setenv(environment.CERTIFICATE, str(file))
    monkeypatch.setattr(certificate, "here", lambda: HERE)
    monkeypatch.setattr(core, "is_built", lambda: True)
    monkeypatch.setattr(core, "jax_has_it", lambda: False)  # registers nothing with a backend
    return file
