"""The sections of several processes on one GPU: starts them, waits, gathers what they found.

    python -m jaxcomm.gpu.checks.ranks processes 60 result.json      # part, seconds, the file that its result goes into

"processes" reach each other's memory by CUDA IPC; the others say that they are on hosts of their own, and send over
NCCL. NCCL from 2.30.7 on lets several ranks share a GPU (NCCL_MULTI_RANK_GPU_ENABLE); older ones are made to believe
that the ranks are on other hosts. Both are experimental. What is shown is that it works, not how quick it is. Exits
with 1 if a process fails or time is up, and with 77 where a part cannot run, say without NCCL.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from jaxcomm.gpu import core, nccl

RANKS = 4
SEVERAL_RANKS = (2, 30, 7)  # NCCL's version from which on they may share a GPU
CANNOT = 77  # the exit code of what finds that it cannot run; the last line that it says is the reason


class Outcome(NamedTuple):
    """Whether all processes found what they should, the report's rows, and why the part cannot run here, if so."""

    passed: bool
    rows: list[list[str]]
    cannot: str = ""


def main(part: str, seconds: float, out: Path) -> int:
    """Runs a part and writes its result; returns the exit code."""
    if off := why_off(part):
        print(off)
        return CANNOT
    if part == "processes":
        program, extra, head = "processes_rank", [on_a_host()], f"{RANKS} processes of one GPU"
    else:
        program, extra = "hosts_rank", environment(nccl.version())
        head = f"{RANKS} ranks, NCCL {'.'.join(map(str, nccl.version()))}"
    found = run(part, RANKS, seconds, [coordinator(), *extra], [sys.executable, "-m", f"jaxcomm.gpu.checks.{program}"])
    if found.cannot:
        print(found.cannot)
        return CANNOT
    out.write_text(json.dumps({"rows": [[head, "result"], *found.rows]}))
    return 0 if found.passed else 1


def why_off(part: str) -> str | None:
    """The needs of a part that this machine lacks, in one line."""
    if not core.is_built():
        return "jaxcomm was built without CUDA"
    return nccl.why_off() if part != "processes" else None


def coordinator() -> dict[str, str]:
    """Where `jax.distributed` connects the processes."""
    with socket.create_server(("localhost", 0)) as free:
        return {"JAXCOMM_COORDINATOR": f"localhost:{free.getsockname()[1]}"}


def on_a_host() -> dict[str, str]:
    """XLA allocates its memory at once, a part of the GPU's."""
    return {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1"}


def environment(version: tuple[int, int, int]) -> list[dict[str, str]]:
    """The environment that has NCCL put several ranks on a GPU: for all ranks, and by `of_rank` for each."""
    common = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "CUDA_MODULE_LOADING": "EAGER"}
    if version >= SEVERAL_RANKS:
        return [common | {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}]
    return [common | {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}, {"NCCL_HOSTID": "host{rank}"}]


def of_rank(rank: int, extra: list[dict[str, str]]) -> dict[str, str]:
    """One rank's environment."""
    return {name: value.format(rank=rank) for part in extra for name, value in part.items()}


def run(part: str, ranks: int, seconds: float, extra: list[dict[str, str]], program: list[str]) -> Outcome:
    """Starts the processes of a part and waits for their end, at most until the limit."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        logs = [folder / f"log of rank {rank}" for rank in range(ranks)]
        running = []
        for rank, log in enumerate(logs):
            command = [*program, part, str(rank), str(ranks), str(folder)]
            with log.open("w") as out:
                running.append(subprocess.Popen(command, env=os.environ | of_rank(rank, extra), stdout=out, stderr=out))
        _await(running, end)
        codes = [each.returncode for each in running]
        if CANNOT in codes and {*codes} <= {0, CANNOT, -signal.SIGKILL}:
            return Outcome(False, [], _last(logs[codes.index(CANNOT)], 1))
        rows: list[list[str]] = json.loads((folder / "rows").read_text()) if (folder / "rows").exists() else []
        for rank, (code, log) in enumerate(zip(codes, logs, strict=True)):
            if code:
                rows.append([f"rank {rank} ended with {code}", _last(log, 3)])
    return Outcome(not any(codes), rows)


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
    sys.exit(main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])))
