"""benchmarks/gpu_processes.py without a GPU: where it cannot run, and its parts on CPUs, which have the same bits."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxcomm.ffi import cuda

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
gpu_processes = importlib.import_module("gpu_processes")
rank = importlib.import_module("gpu_processes_rank")


def test_without_cuda_it_says_so_in_one_line_and_with_a_code_of_its_own(tmp_path: Path) -> None:
    if cuda.why_off() is None:
        pytest.skip("there is a GPU")
    out = tmp_path / "out.json"
    script = [sys.executable, str(ROOT / "benchmarks/gpu_processes.py"), "60", str(out)]
    environment = {"PYTHONPATH": ":".join([str(ROOT), *filter(None, sys.path)])}
    said = subprocess.run(script, capture_output=True, text=True, timeout=120, env=environment)
    assert (said.returncode, said.stdout.strip()) == (gpu_processes.CANNOT, cuda.why_off())
    assert not out.exists()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> rank.Job:
    """All ranks in this process, on CPUs."""
    values = {"ELEMENTS": 1003, "CALLS": 2, "SIZES": (1 << 10,), "fused": SimpleNamespace(check=lambda: None)}
    for name, value in values.items():
        monkeypatch.setattr(rank, name, value)
    return rank.Job(0, 4, tmp_path)


def test_ranks_are_held_to_the_direct_schedules_bits(job: rank.Job) -> None:
    assert [row[1] for row in rank.bits(job)] == ["same bits"] * len(rank.DTYPES)
    assert [row[0] for row in rank.times(job)] == ["1 KiB of a rank"]


def test_a_wrong_bit_ends_the_process(job: rank.Job) -> None:
    whole = rank.data(job.ranks, 1003, "float32", seed=1)

    def wrong(x: jax.Array) -> jax.Array:
        return x * np.float32(2)

    with pytest.raises(SystemExit, match=r"doubled: \d+ bytes differ"):
        rank.call("doubled", wrong, whole)


def test_a_call_that_must_fail_and_does_not_ends_the_process(job: rank.Job) -> None:
    with pytest.raises(SystemExit, match="a call that must fail gave a result"):
        rank.failure(lambda: None)


def test_processes_preallocate_and_know_where_they_meet() -> None:
    environment = gpu_processes.environment()
    assert environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"
    assert environment["JAXCOMM_COORDINATOR"].startswith("localhost:")
