"""The section "nccl": starts a process for each GPU, waits, and gathers what they found.

    python -m jaxcomm.gpu.checks.ranks 300 result.json      # seconds, the file that its result goes into

Exits with 1 if a process fails or time is up, and with 77 where it cannot run, say without NCCL.
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

CANNOT = 77  # the exit code of what finds that it cannot run; its last line is the reason
PROGRAM = (sys.executable, "-m", "jaxcomm.gpu.checks.nccl_rank")


class Outcome(NamedTuple):
    """Whether all processes found what they should, and the report's rows."""

    passed: bool
    rows: list[list[str]]


def main(seconds: float, out: Path) -> int:
    """Runs the section and writes its result; returns the exit code."""
    ranks = gpus()
    if reason := why_off(ranks):
        print(reason)
        return CANNOT
    found = run("nccl", ranks, seconds, list(PROGRAM))
    head = f"{ranks} processes of one GPU each, NCCL {'.'.join(map(str, nccl.version()))}"
    out.write_text(json.dumps({"rows": [[head, "result"], *found.rows]}))
    return 0 if found.passed else 1


def why_off(ranks: int) -> str | None:
    """The needs of the section that this machine lacks, in one line."""
    if not core.is_built():
        return "jaxcomm was built without CUDA"
    return f"NCCL is tried between GPUs of their own; there are {ranks}" if ranks < 2 else nccl.why_off()


def gpus() -> int:
    """The number of GPUs, counted in another process, so that this one holds none."""
    script = "import jax; print(len(jax.devices('cuda')))"
    asked = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    return int(asked.stdout) if asked.returncode == 0 else 0


def run(section: str, ranks: int, seconds: float, program: list[str]) -> Outcome:
    """Starts the processes and waits for their end, at most until the limit."""
    end = time.monotonic() + seconds
    with socket.create_server(("localhost", 0)) as free:
        coordinator = {"JAXCOMM_COORDINATOR": f"localhost:{free.getsockname()[1]}"}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        logs = [folder / f"log of rank {rank}" for rank in range(ranks)]
        running = []
        for rank, log in enumerate(logs):
            command = [*program, section, str(rank), str(ranks), str(folder)]
            with log.open("w") as out:
                running.append(subprocess.Popen(command, env=os.environ | coordinator, stdout=out, stderr=out))
        _await(running, end)
        rows: list[list[str]] = json.loads((folder / "rows").read_text()) if (folder / "rows").exists() else []
        for rank, (each, log) in enumerate(zip(running, logs, strict=True)):
            if each.returncode:
                rows.append([f"rank {rank} ended with {each.returncode}", _last(log, 3)])
    return Outcome(not any(each.returncode for each in running), rows)


def _last(log: Path, count: int) -> str:
    return " / ".join([line for line in log.read_text(errors="replace").splitlines() if line.strip()][-count:])


def _await(running: list[subprocess.Popen[bytes]], end: float) -> None:
    """Waits until all have ended; what still runs then, or soon after another has failed, is ended."""
    failed = False
    while any(each.poll() is None for each in running) and time.monotonic() < end:
        if not failed and any(each.poll() for each in running):
            failed, end = True, min(end, time.monotonic() + 10)  # the others will not get further
        time.sleep(0.05)
    for each in running:
        if each.poll() is None:
            each.kill()
            each.wait()


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), Path(sys.argv[2])))
