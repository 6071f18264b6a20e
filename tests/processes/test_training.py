"""A training over four processes: lax's losses, nothing that grows, and the same bits from a checkpoint on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.processes import jobs
from tests.processes.jobs import Process

pytest.importorskip("flax", reason="the model is Flax's")
pytest.importorskip("orbax.checkpoint", reason="the checkpoint is Orbax's")

pytestmark = pytest.mark.slow

STEPS = 300
# Less than what one more with each of the 120 steps between the first and the last look would take. The pools of XLA
# and Orbax start a thread when they first need it.
GROWTH = {"rss": 8 << 20, "files": 1, "threads": 12}


def run(folder: Path, transport: str) -> list[Process]:
    job = jobs.run("tests.processes.training", str(STEPS), str(folder), processes=4, transport=transport, timeout_s=300)
    assert [process.status for process in job] == [0] * 4, job[0].output
    return job


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("training")


@pytest.fixture(scope="module")
def whole(folder: Path) -> list[Process]:
    return run(folder, "shm")


def test_its_losses_are_those_of_lax(whole: list[Process]) -> None:
    for process in whole:
        ours, theirs = (process.reports[way]["losses"] for way in ("jaxcomm", "lax"))
        assert len(ours) == STEPS and np.mean(ours[-20:]) < ours[0] / 4
        np.testing.assert_allclose(ours, theirs, rtol=1e-3)
        assert ours == whole[0].reports["jaxcomm"]["losses"]


def test_nothing_grows(whole: list[Process]) -> None:
    for process in whole:
        looks = process.reports["jaxcomm"]["held"][5:]  # the checkpoint's own are made before
        for name, growth in GROWTH.items():
            assert looks[-1][name] - looks[0][name] < growth, looks


def test_a_new_job_goes_on_with_the_same_bits_over_another_transport(whole: list[Process], folder: Path) -> None:
    for resumed, process in zip(run(folder, "tcp"), whole, strict=True):
        found, expected = resumed.reports["resumed"], process.reports["jaxcomm"]
        assert found["losses"] == expected["losses"][STEPS // 2 :]
        assert found["digest"] == expected["digest"]
