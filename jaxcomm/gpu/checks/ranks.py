"""Runs a section about GPUs of several processes: starts a process for each GPU, waits, and gathers the results.

    python -m jaxcomm.gpu.checks.ranks nccl 240 result.json      # section, seconds, the file for the result

If there is only one GPU and NCCL allows it, several processes share the GPU. The section then checks bits, not times.
Exits with 1 if a process fails or the time limit passes. Exits with 77 if the section cannot run, for example without
NCCL.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from jaxcomm.gpu import core, nccl

CANNOT = 77  # exit code of a section that cannot run; its last line of output is the reason
PROGRAM = (sys.executable, "-m", "jaxcomm.gpu.checks.rank")
SHARING = 4  # number of processes that share one GPU
SHARED_FROM = (2, 30)  # the first version of NCCL that lets processes share a GPU
# The environment of processes that share one GPU.
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0"}


class Outcome(NamedTuple):
    """Whether all processes got the right results, and the report's rows."""

    passed: bool
    rows: list[list[str]]


def main(section: str, seconds: float, out: Path) -> int:
    """Runs a section and writes its result; returns the exit code."""
    found = gpus()
    if reason := why_off(found):
        print(reason)
        return CANNOT
    ranks = found if found > 1 else SHARING
    outcome = run(section, ranks, found, seconds, list(PROGRAM))
    where = "of one GPU each" if found > 1 else "that share one GPU"
    head = f"{ranks} processes {where}, NCCL {'.'.join(map(str, nccl.version()))}"
    out.write_text(json.dumps({"rows": [[head, "result"], *outcome.rows]}))
    return 0 if outcome.passed else 1


def why_off(gpus: int) -> str | None:
    """The reason why the sections cannot run on this machine, in one line; None if the sections can run."""
    if not core.is_built():
        return "jaxcomm was built without CUDA"
    if gpus == 0:
        return "there is no GPU"
    if (reason := nccl.why_off()) is not None or gpus > 1:
        return reason
    has, needs = (".".join(map(str, version)) for version in (nccl.version(), SHARED_FROM))
    return None if nccl.version() >= SHARED_FROM else f"processes can share one GPU from NCCL {needs} on; this is {has}"


def gpus() -> int:
    """The number of GPUs. Another process counts them, so that this process holds no GPU."""
    script = "import jax; print(len(jax.devices('cuda')))"
    asked = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    return int(asked.stdout) if asked.returncode == 0 else 0


def run(section: str, ranks: int, gpus: int, seconds: float, program: list[str]) -> Outcome:
    """Starts the processes and waits at most `seconds` for their end. Each process has a GPU, or all share one GPU."""
    end = time.monotonic() + seconds
    with socket.create_server(("localhost", 0)) as free:
        job = {"JAXCOMM_COORDINATOR": f"localhost:{free.getsockname()[1]}", **(SHARED if gpus < ranks else {})}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        logs = [folder / f"log of rank {rank}" for rank in range(ranks)]
        running = []
        for rank, log in enumerate(logs):
            command = [*program, section, str(rank), str(ranks), str(folder), "bits" if gpus < ranks else "times"]
            env = {**os.environ, **job, "JAX_LOCAL_DEVICE_IDS": str(rank % gpus)}
            with log.open("w") as out:
                running.append(subprocess.Popen(command, env=env, stdout=out, stderr=out))
        _await(running, end)
        rows: list[list[str]] = json.loads((folder / "rows").read_text()) if (folder / "rows").exists() else []
        for rank, (each, log) in enumerate(zip(running, logs, strict=True)):
            if each.returncode:
                rows.append([f"rank {rank} ended with {each.returncode}", _last(log, 3)])
    return Outcome(not any(each.returncode for each in running), rows)


def _last(log: Path, count: int) -> str:
    return " / ".join([line for line in log.read_text(errors="replace").splitlines() if line.strip()][-count:])


def _await(running: list[subprocess.Popen[bytes]], end: float) -> None:
    """Waits until all processes have ended. Kills processes that still run at `end`, or 10 s after a process failed."""
    failed = False
    while any(each.poll() is None for each in running) and time.monotonic() < end:
        if not failed and any(each.poll() for each in running):
            failed, end = True, min(end, time.monotonic() + 10)  # the other processes cannot proceed
        time.sleep(0.05)
    for each in running:
        if each.poll() is None:
            each.kill()
            each.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])))
