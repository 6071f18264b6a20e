"""One rank of a part of benchmarks/gpu_nccl.py, which starts it.

    python benchmarks/gpu_nccl_rank.py bits 0 4 /tmp/folder      # part, rank, ranks, a folder that all ranks share

It ends with 0 if the rank found what it should; rank 0 leaves rows for the report in the folder.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from gpu_expected import by_numpy  # noqa: E402

from jaxcomm import schedules  # noqa: E402
from jaxcomm.ffi import nccl  # noqa: E402
from jaxcomm.schedules import Schedule  # noqa: E402

DTYPES = ("float32", "bfloat16", "float16", "int32")
SIZES = tuple(2**power for power in range(10, 27, 2))  # bytes
ELEMENTS = 100_003  # not divided by any number of chunks
REPEATS = 20
SHORT_S = 10.0  # deadline of a call that must fail
Rows = list[list[str]]


class Job(NamedTuple):
    """Where this rank is."""

    rank: int
    ranks: int
    folder: Path

    def join(self, group: str, **more: Any) -> None:
        """Joins all ranks of the part in a group, on one rail unless `rails` names several."""
        rails = more.pop("rails", ("",))
        ids = {rail: self.id_of(f"{group} {rail}") for rail in rails}
        nccl.join(group, ranks=self.ranks, rank=self.rank, ids=ids, **more)

    def meet(self, where: str) -> None:
        """Waits until all ranks are there."""
        self.tell(where)
        self.await_others(where)

    def tell(self, where: str) -> None:
        """Tells the others that this rank is there."""
        (self.folder / f"{where} {self.rank}").touch()

    def await_others(self, where: str) -> None:
        """Waits until all others are there."""
        others = set(range(self.ranks)) - {self.rank}
        while not all((self.folder / f"{where} {rank}").exists() for rank in others):
            time.sleep(0.01)

    def id_of(self, name: str) -> bytes:
        """The id that rank 0 makes and the others wait for."""
        file = self.folder / f"id of {name}"
        if self.rank == 0:
            temporary = file.with_suffix(".new")
            temporary.write_bytes(nccl.unique_id())
            temporary.rename(file)
        while not file.exists():
            time.sleep(0.01)
        return file.read_bytes()


def bits(job: Job) -> Rows:
    """Every schedule's sums."""
    job.join("all")
    for name, schedule in schedules_of(job.ranks).items():
        for dtype in DTYPES:
            whole = data(job.ranks, ELEMENTS, dtype, seed=7)
            check(f"{name}, {dtype}", reduced(whole[job.rank], schedule, "all"), by_numpy(schedule, whole)[0])
    return [[name, "same bits: " + ", ".join(DTYPES)] for name in schedules_of(job.ranks)]


def groups(job: Job) -> Rows:
    """Sums within the groups of a period of two iterations."""
    partitions = [[r // 2 for r in range(job.ranks)], [(r + 1) // 2 % max(1, job.ranks // 2) for r in range(job.ranks)]]
    job.join("all", partitions=partitions)
    whole = data(job.ranks, ELEMENTS, "float32", seed=8)
    for iteration, colours in enumerate(partitions):
        members = [other for other in range(job.ranks) if colours[other] == colours[job.rank]]
        if len(members) > 1:
            schedule = schedules.ring(len(members))
            got = reduced(whole[job.rank], schedule, "all", iteration=iteration)
            check(f"iteration {iteration}", got, by_numpy(schedule, whole[members])[0])
    return [[f"groups {colours}", "same bits"] for colours in partitions]


def rails(job: Job) -> Rows:
    """Calls over the module that NCCL chooses and over sockets."""
    job.join("all", rails=("", "Socket"))
    schedule, rows = schedules.ring(job.ranks), []
    for shares in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (3.0, 1.0)):
        whole = data(job.ranks, ELEMENTS, "float32", seed=9)
        wanted = [by_numpy(schedule, whole[:, part])[0] for part in cut(ELEMENTS, 4, shares)]
        check(f"shares {shares}", reduced(whole[job.rank], schedule, "all", shares=shares), np.concatenate(wanted))
        rows.append([f"shares {shares}", "same bits"])
    return rows


def times(job: Job) -> Rows:
    """The ring's time by size."""
    job.join("all")
    return [[f"{size} B, ring", f"{timed(schedules.ring(job.ranks), size):.1f} µs"] for size in SIZES]


def order(job: Job) -> Rows:
    """The last rank calls with another size."""
    job.meet("begin")  # the deadline is also that of joining
    job.join("all", deadline_s=SHORT_S)
    row = np.zeros(1000 + (job.rank == job.ranks - 1), np.float32)
    text = failure(row, schedules.ring(job.ranks), "all")
    if "makes another call than rank" not in text and "make another call than rank" not in text:
        sys.exit(f"the error does not tell of another call: {text}")
    return [["another size", text.splitlines()[0]]]


def lost(job: Job) -> Rows:
    """The last rank does not come; the others are told so, and go on."""
    job.meet("begin")
    job.join("all", deadline_s=SHORT_S)
    gone = job.ranks - 1
    if job.rank == gone:
        return []
    text = failure(np.zeros(1000, np.float32), schedules.ring(job.ranks), "all")
    wanted = f"rank {gone} of {job.ranks} has not arrived after "
    if "DeadlineError: psum #1 over 'all' (" not in text or wanted not in text:
        sys.exit(f"the error does not name rank {gone}: {text}")
    nccl.shrink("all", gone=[gone])
    whole = data(job.ranks - 1, ELEMENTS, "float32", seed=10)
    schedule = schedules.ring(job.ranks - 1)
    check("the others", reduced(whole[job.rank], schedule, "all"), by_numpy(schedule, whole)[0])
    return [[f"rank {gone} does not come", text.splitlines()[0]], ["the others go on", "same bits"]]


WORK: dict[str, Callable[[Job], Rows]] = {
    "bits": bits,
    "groups": groups,
    "rails": rails,
    "times": times,
    "order": order,
    "lost": lost,
}


def schedules_of(ranks: int) -> dict[str, Schedule]:
    """What is checked: every kind."""
    return {
        "ring": schedules.ring(ranks),
        "halving/doubling": schedules.halving_doubling(ranks),
        "direct": schedules.direct(ranks),
        "broadcast": schedules.broadcast(ranks, ranks - 1),
        "straggler": schedules.straggler(ranks, ranks - 1, 2 * ranks + 1),
        "hybrid": schedules.hybrid(ranks, 0, 3 * ranks, ranks),
        "stragglers": schedules.stragglers(ranks, [0, 1], 2 * ranks),
        "chain": schedules.chain(ranks, [0, 1], 2 * ranks + 1),
        "direct join": schedules.direct_join(ranks, ranks - 1, 2 * ranks),
    }


def data(ranks: int, count: int, dtype: str, seed: int) -> np.ndarray:
    """Random rows, one per rank."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    scale = 1000 if dtype == "int32" else 1
    return (np.random.default_rng(seed).normal(size=(ranks, count)) * scale).astype(kind)


def cut(count: int, itemsize: int, shares: Sequence[float]) -> list[slice]:
    """Which elements of an array are on which rail."""
    lines = -(-count * itemsize // 64)
    ends = [int(lines * sum(shares[: i + 1]) / sum(shares) + 0.5) * 64 // itemsize for i in range(len(shares))]
    return [slice(begin, min(end, count)) for begin, end in zip([0, *ends], ends, strict=False)]


def check(what: str, got: np.ndarray, wanted: np.ndarray) -> None:
    """Ends this rank if one bit differs."""
    different = np.flatnonzero(got.view(np.uint8) != wanted.view(np.uint8))
    if len(different):
        sys.exit(f"{what}: {len(different)} bytes differ, the first at {different[0]}")


def reduced(row: np.ndarray, schedule: Schedule, group: str, **more: Any) -> np.ndarray:
    """This rank's result."""
    import jax

    return np.asarray(jax.jit(lambda x: nccl.all_reduce(x, schedule, group, **more))(row))


def failure(row: np.ndarray, schedule: Schedule, group: str) -> str:
    """The error of a call that must fail."""
    try:
        reduced(row, schedule, group)
    except Exception as error:
        return str(error)
    sys.exit("a call that must fail gave a result")


def timed(schedule: Schedule, nbytes: int) -> float:
    """Median microseconds of a call after a warm one, the launch included."""
    import jax
    import jax.numpy as jnp

    call = jax.jit(lambda x: nccl.all_reduce(x, schedule, "all"))
    x = jnp.zeros(nbytes // 4, jnp.float32)
    call(x).block_until_ready()
    seconds = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        call(x).block_until_ready()
        seconds.append(time.perf_counter() - begun)
    return float(np.median(seconds)) * 1e6


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Ends this process where it fails. By itself it would wait for the others of `jax.distributed`, for minutes."""
    try:
        yield
    except BaseException as error:
        print(error if isinstance(error, SystemExit) else traceback.format_exc(), file=sys.stderr, flush=True)
        os._exit(1)


def main(work: dict[str, Callable[[Job], Rows]]) -> None:
    """Does its part's work on the first GPU."""
    import jax

    part, job = sys.argv[1], Job(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    with jax.default_device(jax.devices("cuda")[0]):
        rows = work[part](job)
    if job.rank == 0:
        (job.folder / "rows").write_text(json.dumps(rows))
    job.meet("end")  # whoever leaves takes its sockets along, which others may still need


if __name__ == "__main__":
    main(WORK)
