"""The section "processes" of `jaxcomm check` without a GPU: its parts on CPUs, which have the same bits."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxcomm.gpu.checks import processes_rank as rank
from jaxcomm.gpu.checks.job import data


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> rank.Job:
    """All ranks in this process, on CPUs."""
    values = {"ELEMENTS": 1003, "CALLS": 2, "SIZES": (1 << 10,), "fused": SimpleNamespace(check=lambda: None)}
    for name, value in values.items():
        monkeypatch.setattr(rank, name, value)
    monkeypatch.setattr(rank, "mesh", lambda: rank.mesh_of(jax.devices()[:4]))
    return rank.Job(0, 4, tmp_path)


def test_ranks_are_held_to_the_direct_schedules_bits(job: rank.Job) -> None:
    assert [row[1] for row in rank.bits(job)] == ["same bits"] * len(rank.DTYPES)
    assert [row[0] for row in rank.times(job)] == ["1 KiB of a rank"]


def test_a_wrong_bit_ends_the_process(job: rank.Job) -> None:
    whole = data(job.ranks, 1003, "float32", seed=1)

    def wrong(x: jax.Array) -> jax.Array:
        return x * np.float32(2)

    with pytest.raises(SystemExit, match=r"doubled: \d+ bytes differ"):
        rank.call("doubled", wrong, whole)


def test_a_call_that_must_fail_and_does_not_ends_the_process(job: rank.Job) -> None:
    with pytest.raises(SystemExit, match="a call that must fail gave a result"):
        rank.failure(lambda: None)
