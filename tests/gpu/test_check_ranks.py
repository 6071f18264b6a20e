"""The sections of `jaxcomm check` about several processes, without a GPU: starting and ending them, and their parts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxcomm.gpu import core, nccl
from jaxcomm.gpu.checks import job, machine, rank
from jaxcomm.gpu.checks import ranks as command
from jaxcomm.schedules import Schedule


def test_the_section_says_in_one_line_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "is_built", lambda: False)
    assert command.why_off(8) == "jaxcomm was built without CUDA"
    monkeypatch.setattr(core, "is_built", lambda: True)
    monkeypatch.setattr(nccl, "why_off", lambda: "no NCCL")
    assert command.why_off(0) == "there is no GPU"
    assert command.why_off(1) == command.why_off(2) == "no NCCL"
    monkeypatch.setattr(nccl, "why_off", lambda: None)
    monkeypatch.setattr(nccl, "version", lambda: (2, 28, 9))
    assert command.why_off(1) == "processes can share one GPU from NCCL 2.30 on; this is 2.28.9"
    assert command.why_off(2) is None
    monkeypatch.setattr(nccl, "version", lambda: (2, 30, 3))
    assert command.why_off(1) is None


def test_a_section_that_cannot_run_has_an_exit_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "gpus", lambda: 8)
    monkeypatch.setattr(command, "why_off", lambda gpus: f"no NCCL for {gpus}")
    assert command.main("nccl", 60, tmp_path / "out.json") == command.CANNOT
    assert capsys.readouterr().out == "no NCCL for 8\n"
    assert not (tmp_path / "out.json").exists()


RANK = """
import json, os, sys, time
from pathlib import Path
part, rank, ranks, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
if part == "bits" and rank == 0:
    (folder / "rows").write_text(json.dumps([["ring", os.environ["JAXCOMM_COORDINATOR"].split(":")[0]]]))
if part == "lost" and rank == 1:
    sys.exit("it differs")
if part == "lost":
    time.sleep(3)
if part == "times":
    time.sleep(60)
if part == "where":
    shared = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE")
    row = [os.environ["JAX_LOCAL_DEVICE_IDS"], sys.argv[5], "shared" if shared else "alone"]
    if rank == ranks - 1:
        (folder / "rows").write_text(json.dumps([row]))
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    file = tmp_path / "rank.py"
    file.write_text(RANK)
    return [sys.executable, str(file)]


def test_the_rows_of_a_part_are_gathered(program: list[str]) -> None:
    assert command.run("bits", 3, 3, 60, program) == (True, [["ring", "localhost"]])


def test_ranks_have_a_gpu_each_or_share_one(program: list[str]) -> None:
    assert command.run("where", 3, 3, 60, program) == (True, [["2", "times", "alone"]])
    assert command.run("where", 3, 1, 60, program) == (True, [["0", "bits", "shared"]])


def test_a_rank_that_fails_is_named_with_its_last_lines(program: list[str]) -> None:
    assert command.run("lost", 3, 3, 60, program) == (False, [["rank 1 ended with 1", "it differs"]])


def test_ranks_that_hang_are_ended_at_the_deadline(program: list[str]) -> None:
    outcome = command.run("times", 2, 2, 1, program)
    assert not outcome.passed
    assert [row[0] for row in outcome.rows] == ["rank 0 ended with -9", "rank 1 ended with -9"]


def test_a_process_that_fails_waits_for_nobody_at_its_exit() -> None:
    script = """
import atexit, sys, time
from jaxcomm.gpu.checks import job
atexit.register(time.sleep, 60)
with job.ending_at_once():
    sys.exit("it differs")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stderr.strip()) == (1, "it differs")


def test_a_difference_of_one_bit_ends_the_rank() -> None:
    one = np.ones(100, np.float32)
    job.require_equal("same", one, one.copy())
    other = one.copy()
    other[7] = np.nextafter(np.float32(1), np.float32(2))
    with pytest.raises(SystemExit, match="ring, float32: 1 bytes differ, the first at 28"):
        job.require_equal("ring, float32", one, other)


@pytest.fixture
def all_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> job.Job:
    """All ranks in this process, on CPUs, as the last of which it comes late."""
    for name, value in {"ELEMENTS": 1003, "CALLS": 2, "SIZES": (1 << 10,), "LATE_BYTES": 1 << 10, "REPEATS": 2}.items():
        monkeypatch.setattr(rank, name, value)
    monkeypatch.setattr(rank, "mesh", lambda: job.mesh_of(jax.devices()[3::-1]))
    monkeypatch.setattr(job.Job, "await_others", lambda self, where: None)
    for other in range(3):
        for name in ("direct", "ring", "straggler", "jax.lax"):
            for call in range(2):
                (tmp_path / f"{name} {call} times {other}").write_text("0 0")
    return job.Job(3, 4, tmp_path)


def by_numpy(schedule: Schedule) -> job.Step:
    """NumPy in NCCL's place."""
    return lambda x: job.placed(rank.by_numpy(schedule, np.asarray(x)), rank.mesh())


@pytest.mark.parametrize("by", [by_numpy, rank.by_permutes])
def test_ranks_are_held_to_the_bits_of_every_schedule(all_here: job.Job, by: rank.By) -> None:
    assert [row[0] for row in rank.bits(all_here, by)] == ["direct", "ring", "straggler"]
    (head, found), (late_head, late) = rank.times(all_here, by)
    assert head == "1 KiB, ms" and late_head == "1 KiB, the last rank 50 ms late, ms after it"
    for row in (found, late):
        assert [each.split()[0] for each in row.split(", ")] == ["direct", "ring", "straggler", "jax.lax"]
        assert all(0 < float(each.split()[1]) < 60_000 for each in row.split(", "))


def test_a_schedule_with_other_bits_ends_the_rank(all_here: job.Job) -> None:
    with pytest.raises(SystemExit, match=r"direct, float32, call 0: \d+ bytes differ"):
        list(rank.bits(all_here, lambda schedule: lambda x: by_numpy(schedule)(x) + 1))


def test_the_machine_says_which_memory_there_is_and_what_could_run(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"driver": "580.65", "cuda": "13.0", "nccl": "2.30.7", "jax": "0.11", "jaxlib": "0.11"}
    reached: dict[int, str | None] = dict.fromkeys(range(8))
    monkeypatch.setattr(machine.certificate, "here", lambda: here)
    monkeypatch.setattr(machine.ranks, "why_off", lambda gpus: None)
    monkeypatch.setattr(machine.jax, "local_devices", lambda backend: jax.devices()[:4])
    monkeypatch.setattr(machine.CUDA, "text", lambda function, device, address: "cuMemCreate")
    monkeypatch.setattr(machine.CUDA, "failure", lambda function, device, address: reached[device])
    rows = dict(machine.machine())  # type: ignore[arg-type]  # rows of two
    assert rows["XLA's memory is of"] == "cuMemCreate"
    assert rows["pairs of GPUs that reach XLA's memory"] == "12 of 12"
    assert rows["sums in a process, by the fused kernel"] == "could run"
    assert rows["sums between processes, by NCCL and by XLA's permutes"] == "could run"
    reached[jax.devices()[2].local_hardware_id] = "GPU 2 may not touch this operand.\n  Cure: …"
    rows = dict(machine.machine())  # type: ignore[arg-type]
    assert rows["pairs of GPUs that reach XLA's memory"] == "9 of 12"
    assert rows["sums in a process, by the fused kernel"] == "cannot run: GPU 2 may not touch this operand."
    monkeypatch.setattr(machine.jax, "local_devices", lambda backend: jax.devices()[:1])
    rows = dict(machine.machine())  # type: ignore[arg-type]
    assert rows["sums in a process, by the fused kernel"] == "cannot run: it needs a second GPU"
