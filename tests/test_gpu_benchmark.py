"""benchmarks/gpu.py without a GPU: its dry run, its report, and its NumPy reference."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
gpu = importlib.import_module("gpu")
gpu_sections = importlib.import_module("gpu_sections")


def test_the_dry_run_names_every_section_and_starts_none(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks/gpu.py"), "--dry-run", "--out", str(tmp_path / "gpu.md")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert [line.split(":")[0] for line in said.splitlines()] == list(gpu.ALL)
    assert all(": would " in line for line in said.splitlines())
    assert not (tmp_path / "gpu.md").exists()


def test_the_sections_fit_into_ten_minutes_and_exist() -> None:
    assert sum(section.seconds for section in gpu.ALL.values()) < 600
    assert {name for name, section in gpu.ALL.items() if not section.wrapper} == set(gpu_sections.SECTIONS)


def test_the_report_holds_every_result() -> None:
    results = {
        "exact": {
            "state": "passed",
            "seconds": 1.25,
            "rows": [["schedule", "wrong"], ["ring", "0"]],
            "device": "GPU X",
        },
        "late": {"state": "failed", "seconds": 2.0, "rows": [["why | not", "there"], ["late"]], "device": None},
        "memcheck": {"state": "left out", "seconds": 0.0, "rows": [], "device": None},
    }
    text = gpu.report(results, "python benchmarks/gpu.py")
    assert "`python benchmarks/gpu.py` on GPU X, 20" in text
    assert "| schedule | wrong |\n| --- | --- |\n| ring | 0 |\n" in text
    assert "late: failed, 2.0 s.\n\n| why \\| not | there |\n| --- | --- |\n| late |  |\n" in text
    assert "memcheck: left out, 0.0 s." in text


def test_a_section_that_fails_is_told_with_its_last_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "sections.py"
    script.write_text("raise SystemExit('the GPU is tired')")
    monkeypatch.setattr(gpu, "SECTIONS", script)
    result = gpu.run("late")
    assert (result["state"], result["rows"]) == ("failed", [["the GPU is tired"]])


@pytest.mark.parametrize("name", gpu_sections.MATRIX)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_the_reference_adds_up(name: str, dtype: type) -> None:
    x: NDArray[np.float64] = np.random.default_rng(0).integers(-8, 8, (gpu_sections.RANKS, 1003))
    result = gpu_sections.by_numpy(gpu_sections.MATRIX[name], x.astype(dtype))
    assert (result.astype(np.int64) == x.sum(axis=0)).all()
