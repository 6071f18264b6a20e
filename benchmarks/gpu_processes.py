"""The section of gpu.py about ranks in several processes: starts four on one GPU, waits, gathers what they found.

    python benchmarks/gpu_processes.py 60 result.json      # seconds, the file that its result goes into

Each process is one of a job of jax.distributed, and has the GPU's kernels run while the others' wait: what is shown is
that they reach each other's memory, not how quick that is. Exits with 1 if a process fails or time is up, and with 77
where CUDA is off.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from gpu import why_off
from gpu_nccl import CANNOT, RANKS, run

PROCESS = Path(__file__).resolve().parent / "gpu_processes_rank.py"


def main(seconds: float, out: Path) -> int:
    """Runs the processes and writes what they found; returns the exit code."""
    if off := why_off():  # in another process: this one would take the memory that those need
        print(off)
        return CANNOT
    found = run("processes", RANKS, seconds, [environment()], PROCESS)
    out.write_text(json.dumps({"rows": [[f"{RANKS} processes of one GPU", "result"], *found.rows]}))
    return 0 if found.passed else 1


def environment() -> dict[str, str]:
    """Of every process: where they meet, and that XLA allocates its memory at once, a part of the GPU's."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    return {
        "JAXCOMM_COORDINATOR": address,
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.1",
    }


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), Path(sys.argv[2])))
