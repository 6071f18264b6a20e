"""Helpers that the processes of a check share: their ranks, barriers, data and timing."""

from __future__ import annotations

import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Step = Callable[[jax.Array], Any]


class Job(NamedTuple):
    """This process's rank, the number of ranks, and the folder that all ranks share."""

    rank: int
    ranks: int
    folder: Path

    @classmethod
    def from_arguments(cls) -> Job:
        """Reads the arguments that `ranks.run` passes after the section."""
        return cls(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))

    def barrier(self, where: str) -> None:
        """Waits until all ranks have arrived."""
        self.arrive(where)
        self.await_others(where)

    def arrive(self, where: str) -> None:
        """Records for the other ranks that this rank has arrived."""
        (self.folder / f"{where} {self.rank}").touch()

    def await_others(self, where: str) -> None:
        """Waits until all other ranks have arrived."""
        others = set(range(self.ranks)) - {self.rank}
        while not all((self.folder / f"{where} {rank}").exists() for rank in others):
            time.sleep(0.01)


def mesh_of(devices: Any) -> Mesh:
    """A mesh of these devices over one axis."""
    return Mesh(np.array(devices), ("data",))


def median_seconds(step: Step, x: jax.Array, calls: int) -> float:
    """The median seconds of a call after a warm-up call, including the launch and the wait for the end."""
    jax.block_until_ready(step(x))
    times = []
    for _ in range(calls):
        begun = time.perf_counter()
        jax.block_until_ready(step(x))
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def seconds_after_arrival(job: Job, step: Step, x: jax.Array, late_s: float, calls: int, name: str) -> float:
    """The median seconds from the arrival of the last rank, which is late, until all ranks end, by the host's clock."""
    jax.block_until_ready(step(x))
    times = []
    for call in range(calls):
        job.barrier(f"{name} {call} begin")
        time.sleep(late_s * (job.rank == job.ranks - 1))
        begun = time.time()
        jax.block_until_ready(step(x))
        (job.folder / f"{name} {call} times {job.rank}").write_text(f"{begun} {time.time()}")
        job.barrier(f"{name} {call} end")
        found = [(job.folder / f"{name} {call} times {rank}").read_text().split() for rank in range(job.ranks)]
        times.append(max(float(end) for _, end in found) - max(float(begin) for begin, _ in found))
    return statistics.median(times)


def stepped(mesh: Mesh, reduce: Callable[[Any], Any]) -> Step:
    """A jitted reduction of rows. Each device has one row."""
    rows: Any = PartitionSpec("data")
    return jax.jit(jax.shard_map(reduce, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))


def placed(unsharded: np.ndarray, mesh: Mesh) -> jax.Array:
    """An array with row r on device r of the mesh. This process makes only the rows of its own devices."""
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    return jax.make_array_from_callback(unsharded.shape, sharding, lambda index: unsharded[index])


def rows_of(result: jax.Array, wanted: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields this process's parts of a result, each with the expected part."""
    for shard in result.addressable_shards:
        yield np.asarray(shard.data), wanted[shard.index]


def data(ranks: int, count: int, dtype: str, seed: int) -> np.ndarray:
    """Random rows, one per rank."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    scale = 1000 if dtype == "int32" else 1
    return (np.random.default_rng(seed).normal(size=(ranks, count)) * scale).astype(kind)


def require_equal(label: str, got: np.ndarray, wanted: np.ndarray) -> None:
    """Ends this process if any bit differs."""
    different = np.flatnonzero(np.ascontiguousarray(got).view(np.uint8) != np.ascontiguousarray(wanted).view(np.uint8))
    if len(different):
        sys.exit(f"{label}: {len(different)} bytes differ, the first at {different[0]}")


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Ends this process at once if it fails. Otherwise `jax.distributed` would wait minutes for the other processes."""
    try:
        yield
    except BaseException as error:
        print(error if isinstance(error, SystemExit) else traceback.format_exc(), file=sys.stderr, flush=True)
        os._exit(1)
