"""One part of what several processes on one GPU show by NCCL: starts its ranks, waits, gathers what they found.

    python benchmarks/gpu_nccl.py bits 110 result.json      # part, seconds, the file that its result goes into

Each part is a section of gpu.py. NCCL from 2.30.7 on lets several ranks share a GPU (NCCL_MULTI_RANK_GPU_ENABLE);
older ones are made to believe that the ranks are on hosts of their own. Both are experimental. Exits with 1 if a rank
fails or time is up, and with 77 where a part cannot run, say without NCCL.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent
RANK = HERE / "gpu_nccl_rank.py"
ON_HOSTS = ("psum", "lent", "lent lost")
OTHERWISE = dict.fromkeys(ON_HOSTS, HERE / "gpu_hosts_rank.py")  # which program runs a part
RANKS = 4
SEVERAL_RANKS = (2, 30, 7)  # NCCL's version from which on they may share a GPU
CANNOT = 77
COMMON = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "CUDA_MODULE_LOADING": "EAGER"}

sys.path.insert(0, str(ROOT))

from jaxcomm.ffi import lent, nccl  # noqa: E402


class Outcome(NamedTuple):
    """Whether all ranks found what they should, the report's rows, and why the part cannot run here, if so."""

    passed: bool
    rows: list[list[str]]
    cannot: str = ""


def main(name: str, seconds: float, out: Path) -> int:
    """Runs a part and writes its result; returns the exit code."""
    if off := why_off(name):
        print(off)
        return CANNOT
    version = nccl.version()
    found = run(name, RANKS, seconds, environment(version), OTHERWISE.get(name, RANK))
    if found.cannot:
        print(found.cannot)
        return CANNOT
    head = [f"{RANKS} ranks, NCCL {'.'.join(map(str, version))}", "result"]
    out.write_text(json.dumps({"rows": [head, *found.rows]}))
    return 0 if found.passed else 1


def why_off(name: str) -> str | None:
    """What a part needs and this machine has not, in one line."""
    return nccl.why_off() or (lent.why_off() if name.startswith("lent") else None)


def environment(version: tuple[int, int, int]) -> list[dict[str, str]]:
    """What makes NCCL put several ranks on a GPU: for all ranks, then what differs for each is added by `of_rank`."""
    if version >= SEVERAL_RANKS:
        return [COMMON | {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}]
    return [COMMON | {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}, {"NCCL_HOSTID": "host{rank}"}]


def of_rank(rank: int, extra: list[dict[str, str]]) -> dict[str, str]:
    """One rank's environment."""
    return {name: value.format(rank=rank) for part in extra for name, value in part.items()}


def run(name: str, ranks: int, seconds: float, extra: list[dict[str, str]], program: Path = RANK) -> Outcome:
    """Starts the ranks of a part and waits for their end, for so many seconds at most."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        logs = [folder / f"log of rank {rank}" for rank in range(ranks)]
        running = []
        for rank, log in enumerate(logs):
            command = [sys.executable, str(program), name, str(rank), str(ranks), str(folder)]
            with log.open("w") as out:
                running.append(
                    subprocess.Popen(command, env=os.environ | of_rank(rank, extra), stdout=out, stderr=out, cwd=ROOT)
                )
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
