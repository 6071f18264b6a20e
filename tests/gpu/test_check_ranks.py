"""The sections of `jaxcomm check` about several processes, without a GPU: what isolates failures, and their parts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxcomm.gpu import core, nccl
from jaxcomm.gpu.checks import hosts_rank, job
from jaxcomm.gpu.checks import ranks as command


def test_a_part_says_in_one_line_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "is_built", lambda: False)
    assert command.why_off("processes") == "jaxcomm was built without CUDA"
    monkeypatch.setattr(core, "is_built", lambda: True)
    monkeypatch.setattr(nccl, "why_off", lambda: "no NCCL")
    assert [command.why_off(part) for part in ("processes", "bits")] == [None, "no NCCL"]


def test_what_cannot_run_has_an_exit_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "why_off", lambda part: f"no {part} here")
    assert command.main("bits", 60, tmp_path / "out.json") == command.CANNOT
    assert capsys.readouterr().out == "no bits here\n"
    assert not (tmp_path / "out.json").exists()


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
if part == "lost" and rank == 1:
    sys.exit("it differs")
if part == "lost":
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
def program(tmp_path: Path) -> list[str]:
    file = tmp_path / "rank.py"
    file.write_text(RANK)
    return [sys.executable, str(file)]


def test_what_a_part_found_is_gathered(program: list[str]) -> None:
    outcome = command.run("bits", 3, 60, [{"HOST": "host{rank}"}], program)
    assert outcome == (True, [["ring", "host0"]], "")


def test_a_rank_that_fails_is_told_with_its_last_lines(program: list[str]) -> None:
    outcome = command.run("lost", 3, 60, [], program)
    assert outcome == (False, [["rank 1 ended with 1", "it differs"]], "")


def test_what_a_rank_says_that_it_cannot_is_why_the_part_is_left_out(program: list[str]) -> None:
    assert command.run("left out", 2, 1, [], program) == (False, [], "no NCCL here")
    outcome = command.run("order", 2, 60, [], program)
    assert outcome.cannot == "" and ["rank 1 ended with 1", "it differs"] in outcome.rows


def test_a_process_that_fails_waits_for_nobody_at_its_exit() -> None:
    script = """
import atexit, sys, time
from jaxcomm.gpu.checks import job
atexit.register(time.sleep, 60)
with job.ending_at_once():
    sys.exit("it differs")
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert (said.returncode, said.stderr.strip()) == (1, "it differs")


def test_ranks_that_hang_are_ended_at_the_deadline(program: list[str]) -> None:
    outcome = command.run("times", 2, 1, [], program)
    assert not outcome.passed
    assert [row[0] for row in outcome.rows] == ["rank 0 ended with -9", "rank 1 ended with -9"]


def test_a_difference_of_one_bit_ends_the_rank() -> None:
    one = np.ones(100, np.float32)
    job.require_equal("same", one, one.copy())
    other = one.copy()
    other[7] = np.nextafter(np.float32(1), np.float32(2))
    with pytest.raises(SystemExit, match="ring, float32: 1 bytes differ, the first at 28"):
        job.require_equal("ring, float32", one, other)


@pytest.fixture
def all_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> job.Job:
    """All ranks in this process, on CPUs, whose psum has the same bits."""
    for name, value in {"ELEMENTS": 1003, "CALLS": 2, "SIZES": (1 << 10,), "REPEATS": 2}.items():
        monkeypatch.setattr(hosts_rank, name, value)
    monkeypatch.setattr(hosts_rank, "mesh", lambda: job.mesh_of(jax.devices()[3::-1]))
    monkeypatch.setattr(hosts_rank, "by_messages", lambda reduce, unsharded: job.stepped(hosts_rank.mesh(), reduce))
    return job.Job(0, 4, tmp_path)


def test_ranks_are_held_to_the_bits_of_every_schedule(all_here: job.Job) -> None:
    rows = hosts_rank.bits(all_here)
    assert [row[0] for row in rows[:2]] == ["direct: direct", "a plan: halving_doubling"]
    assert rows[2][0].startswith("a plan for a late rank: ") and rows[-1] == ["pmax", "same bits"]
    assert [row[0] for row in hosts_rank.times(all_here)] == ["1024 B, direct"]


def test_a_step_that_does_not_send_is_found(all_here: job.Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(hosts_rank, "mesh", lambda: job.mesh_of(jax.devices()[:4]))
    with pytest.raises(SystemExit, match="the step does not call jaxcomm_messages"):
        hosts_rank.by_messages(lambda x: x, job.data(4, 10, "float32", seed=0))
