"""Medians of MPI's own allreduce of float32, by size, without JAX, to stand beside `jaxcomm bench` between processes.

pip install mpi4py
mpirun -n 4 python benchmarks/mpi_allreduce.py
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from mpi4py import MPI

SIZES = (2**10, 2**16, 2**20, 2**24, 2**26)  # bytes of a rank


def main() -> None:
    ranks = MPI.COMM_WORLD
    for nbytes in SIZES:
        own = np.zeros(nbytes // 4, np.float32)
        total, seconds = np.zeros_like(own), []
        for _ in range(200 if nbytes < 2**20 else 30 if nbytes < 2**24 else 8):
            ranks.Barrier()
            start = time.perf_counter()
            ranks.Allreduce(own, total)
            seconds.append(time.perf_counter() - start)
        if ranks.rank == 0:
            print(f"{nbytes} bytes: {1e6 * statistics.median(seconds):.1f} µs", flush=True)


if __name__ == "__main__":
    main()
