"""benchmarks/gpu_nccl.py without a GPU: what isolates failures, and its NumPy reference."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxcomm.ffi import lent, nccl

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
command = importlib.import_module("gpu_nccl")
work = importlib.import_module("gpu_nccl_rank")


def test_without_nccl_it_says_so_in_one_line_and_with_a_code_of_its_own(tmp_path: Path) -> None:
    if nccl.why_off() is None:
        pytest.skip("there is NCCL")
    out = tmp_path / "out.json"
    script = [sys.executable, str(ROOT / "benchmarks/gpu_nccl.py"), "bits", "60", str(out)]
    said = subprocess.run(script, capture_output=True, text=True, timeout=120)
    assert (said.returncode, said.stdout.strip()) == (command.CANNOT, nccl.why_off())
    assert not out.exists()


def test_ranks_share_a_gpu_as_nccls_version_allows() -> None:
    newer, older = command.environment((2, 30, 7)), command.environment((2, 30, 5))
    assert command.of_rank(3, newer)["NCCL_MULTI_RANK_GPU_ENABLE"] == "1"
    assert "NCCL_HOSTID" not in command.of_rank(3, newer)
    assert command.of_rank(3, older)["NCCL_HOSTID"] == "host3"
    assert "NCCL_MULTI_RANK_GPU_ENABLE" not in command.of_rank(3, older)


RANK = """
import json, os, sys, time
from pathlib import Path
part, rank, ranks, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
if part == "bits" and rank == 0:
    (folder / "rows").write_text(json.dumps([["ring", os.environ["HOST"]]]))
if part == "groups" and rank == 1:
    sys.exit("it differs")
if part == "groups":
    time.sleep(3)
if part == "times":
    time.sleep(60)
if part == "left out" and rank != 1:
    print("looking", "no NCCL here", sep="\\n")
    sys.exit(77)
if part == "left out":
    time.sleep(60)
if part == "order":
    sys.exit(77 if rank == 0 else "it differs")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "rank.py"
    file.write_text(RANK)
    return file


def test_what_a_part_found_is_gathered(program: Path) -> None:
    outcome = command.run("bits", 3, 60, [{"HOST": "host{rank}"}], program)
    assert outcome == (True, [["ring", "host0"]], "")


def test_a_rank_that_fails_is_told_with_its_last_lines(program: Path) -> None:
    outcome = command.run("groups", 3, 60, [], program)
    assert outcome == (False, [["rank 1 ended with 1", "it differs"]], "")


def test_what_a_rank_says_that_it_cannot_is_why_the_part_is_left_out(program: Path) -> None:
    assert command.run("left out", 2, 1, [], program) == (False, [], "no NCCL here")
    told = command.run("order", 2, 60, [], program)
    assert told.cannot == "" and ["rank 1 ended with 1", "it differs"] in told.rows


def test_a_process_that_fails_waits_for_nobody_at_its_exit() -> None:
    script = """
import atexit, sys, time
import gpu_nccl_rank
atexit.register(time.sleep, 60)
with gpu_nccl_rank.ending_at_once():
    sys.exit("it differs")
"""
    path = {"PYTHONPATH": ":".join([str(ROOT / "benchmarks"), *filter(None, sys.path)])}
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, env=path)
    assert (said.returncode, said.stderr.strip()) == (1, "it differs")


def test_a_part_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "why_off", lambda: None)
    monkeypatch.setattr(lent, "why_off", lambda: "XLA lends none")
    assert [command.why_off(part) for part in ("bits", "psum", "lent")] == [None, None, "XLA lends none"]


def test_ranks_that_hang_are_ended_at_the_deadline(program: Path) -> None:
    outcome = command.run("times", 2, 1, [], program)
    assert not outcome.passed
    assert [row[0] for row in outcome.rows] == ["rank 0 ended with -9", "rank 1 ended with -9"]


@pytest.mark.parametrize("dtype", work.DTYPES)
def test_it_expects_the_programs_bits(dtype: str) -> None:
    for schedule in work.schedules_of(4).values():
        data = work.data(4, 1003, dtype, seed=1)
        found = work.by_numpy(schedule, data)[0]
        assert found.dtype == data.dtype
        np.testing.assert_allclose(found.astype(np.float64), data.astype(np.float64).sum(axis=0), rtol=0.02, atol=0.1)


@pytest.mark.parametrize("shares", [(1.0,), (1.0, 0.0), (0.0, 1.0), (3.0, 1.0), (1.0, 1.0, 1.0)])
def test_rails_are_cut_at_lines_and_lose_no_element(shares: tuple[float, ...]) -> None:
    parts = work.cut(1003, 4, shares)
    assert len(parts) == len(shares)
    assert np.concatenate([np.arange(1003)[part] for part in parts]).tolist() == list(range(1003))
    assert all(part.start * 4 % 64 == 0 for part in parts)


def test_a_difference_of_one_bit_ends_the_rank() -> None:
    one = np.ones(100, np.float32)
    work.check("same", one, one.copy())
    other = one.copy()
    other[7] = np.nextafter(np.float32(1), np.float32(2))
    with pytest.raises(SystemExit, match="ring, float32: 1 bytes differ, the first at 28"):
        work.check("ring, float32", one, other)
