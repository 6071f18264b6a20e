"""Sends and receives between processes that share one GPU: every schedule's bits, groups, times, and a lost rank.

    python benchmarks/gpu_nccl.py --ranks 4                      # prints its rows
    python benchmarks/gpu_nccl.py --ranks 4 --out result.json    # writes them, too, with the device's name

NCCL from 2.30.3 on lets several ranks share a GPU (NCCL_MULTI_RANK_GPU_ENABLE); older ones are made to believe that the
ranks are on hosts of their own. Both are experimental: a run that hangs is ended after --limit seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from jaxcomm import schedules  # noqa: E402
from jaxcomm.ffi import cuda, nccl  # noqa: E402
from jaxcomm.plan.program import Program, compile  # noqa: E402
from jaxcomm.schedules import Schedule  # noqa: E402

DTYPES = ("float32", "bfloat16", "float16", "int32")
SIZES = tuple(2**power for power in range(10, 27, 2))  # bytes
ELEMENTS = 100_003  # not divided by any number of chunks
REPEATS = 20
LOST_S = 3.0  # deadline of the call that a rank does not join


def main() -> None:
    """Starts the ranks and gathers what they found, or is one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds after which all ranks are ended")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        return work(args.worker, args.ranks, args.folder)
    if reason := cuda.why_off() or nccl.why_off():
        sys.exit(f"benchmarks/gpu_nccl.py: {reason}")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        failed = start(args.ranks, Path(folder), args.limit)
        found = Path(folder) / "result.json"
        result = json.loads(found.read_text()) if found.exists() else {"rows": [], "device": None}
    result["rows"] += [[line] for line in failed]
    for row in result["rows"]:
        print(*row, sep="\t")
    if args.out:
        args.out.write_text(json.dumps(result))
    sys.exit(bool(failed))


def start(ranks: int, folder: Path, limit: float) -> list[str]:
    """Runs the ranks to their end or the limit, and returns what went wrong."""
    several = nccl.version() >= (2, 30, 3)
    logs = [folder / f"log of rank {rank}" for rank in range(ranks)]
    running = []
    for rank, log in enumerate(logs):
        alone = {"NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
        extra = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"} if several else alone
        extra |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "CUDA_MODULE_LOADING": "EAGER"}
        command = [sys.executable, __file__, f"--ranks={ranks}", f"--worker={rank}", f"--folder={folder}"]
        with log.open("w") as out:
            running.append(subprocess.Popen(command, env=os.environ | extra, stdout=out, stderr=out, cwd=ROOT))
    end = time.monotonic() + limit
    while any(each.poll() is None for each in running) and time.monotonic() < end:
        if any(each.poll() for each in running):
            end = min(end, time.monotonic() + 10)  # the others will not get further
        time.sleep(0.1)
    failed = []
    for rank, (each, log) in enumerate(zip(running, logs, strict=True)):
        if each.poll() is None:
            each.kill()
            each.wait()
        if each.returncode:
            last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-3:]
            failed.append(f"rank {rank} ended with {each.returncode}: {' / '.join(last)}")
    return failed


def work(rank: int, ranks: int, folder: Path) -> None:
    """One rank."""
    import jax

    device = jax.devices("cuda")[0]
    partitions = [[r // 2 for r in range(ranks)], [(r + 1) // 2 % max(1, ranks // 2) for r in range(ranks)]]
    nccl.join(
        "all", ranks=ranks, rank=rank, ids={"": shared_id(folder / "id", rank)}, partitions=partitions, deadline_s=60.0
    )
    rows: list[list[Any]] = [["what", "of", "result"]]
    with jax.default_device(device):
        for name, schedule in schedules_of(ranks).items():
            for dtype in DTYPES:
                whole = data(ranks, ELEMENTS, dtype, seed=7)
                check(name, dtype, all_reduced(whole[rank], schedule, "all"), expected(schedule, whole))
            rows.append(["same bits as the program", name, ", ".join(DTYPES)])
        for iteration, groups in enumerate(partitions):
            members = [other for other in range(ranks) if groups[other] == groups[rank]]
            if len(members) > 1:
                schedule, whole = schedules.ring(len(members)), data(ranks, ELEMENTS, "float32", seed=8)
                got = all_reduced(whole[rank], schedule, "all", iteration=iteration)
                check("groups", f"iteration {iteration}", got, expected(schedule, whole[members]))
        rows.append(["sums of groups", f"{len(partitions)} iterations", "same bits"])
        for size in SIZES:
            rows.append(["median of a call", f"{size} B, ring", f"{timed(schedules.ring(ranks), size):.1f} µs"])
        nccl.leave("all")
        rows.append(["a rank is lost", f"deadline {LOST_S:g} s", lost(rank, ranks, folder)])
    if rank == 0:
        result = {"rows": rows, "device": f"{device.device_kind}, NCCL {'.'.join(map(str, nccl.version()))}"}
        (folder / "result.json").write_text(json.dumps(result))


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
    }


def data(ranks: int, count: int, dtype: str, seed: int) -> np.ndarray:
    """Random rows, one per rank."""
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    scale = 1000 if dtype == "int32" else 1
    return (np.random.default_rng(seed).normal(size=(ranks, count)) * scale).astype(kind)


def expected(schedule: Schedule, rows: np.ndarray) -> np.ndarray:
    """The sum as the schedule's program adds it: 16-bit types in float32, and rounded once."""
    program = Program.decode(compile(schedule))
    buffers = rows.copy()
    line = 64 // rows.itemsize
    lines = -(-rows.shape[1] // line)
    bounds = [-(-lines * chunk // program.chunks) * line for chunk in range(program.chunks + 1)]
    wide = np.float32 if rows.itemsize == 2 else rows.dtype
    for op in program.ops:
        part = slice(bounds[op.chunk], bounds[op.chunk + 1])
        total = buffers[op.reads[0], part].astype(wide)
        for source in op.reads[1:]:
            total = total + buffers[source, part].astype(wide)
        for to in op.writes:
            buffers[to, part] = total.astype(rows.dtype)
    return buffers[0]


def check(name: str, what: str, got: np.ndarray, wanted: np.ndarray) -> None:
    """Ends this rank if one bit differs."""
    different = np.flatnonzero(got.view(np.uint8) != wanted.view(np.uint8))
    if len(different):
        sys.exit(f"{name}, {what}: {len(different)} bytes differ, the first at {different[0]}")


def all_reduced(row: np.ndarray, schedule: Schedule, group: str, iteration: int | None = None) -> np.ndarray:
    """This rank's result."""
    return np.asarray(reducer(schedule, group, iteration)(row))


def reducer(schedule: Schedule, group: str, iteration: int | None = None) -> Callable[[Any], Any]:
    """The jitted call."""
    import jax

    return jax.jit(lambda x: nccl.all_reduce(x, schedule, group, iteration=iteration))


def timed(schedule: Schedule, nbytes: int) -> float:
    """Median microseconds of a call after a warm one, the launch included."""
    import jax.numpy as jnp

    call, x = reducer(schedule, "all"), jnp.zeros(nbytes // 4, jnp.float32)
    call(x).block_until_ready()
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        call(x).block_until_ready()
        times.append(time.perf_counter() - begun)
    return float(np.median(times)) * 1e6


def lost(rank: int, ranks: int, folder: Path) -> str:
    """What the others are told when the last rank does not come to a call."""
    nccl.join(
        "lost",
        ranks=ranks,
        rank=rank,
        ids={"": shared_id(folder / "id of lost", rank)},
        board=str(folder / "board"),
        deadline_s=LOST_S,
    )
    done = folder / f"done {rank}"
    if rank == ranks - 1:
        while sum((folder / f"done {other}").exists() for other in range(rank)) < rank:
            time.sleep(0.05)
        return ""
    try:
        all_reduced(np.zeros(1000, np.float32), schedules.ring(ranks), "lost")
    except Exception as error:
        text = str(error)
    else:
        sys.exit("a call without the last rank gave a result")
    wanted = f"rank {ranks - 1} of {ranks} has not arrived after "
    if "DeadlineError: psum #1: " not in text or wanted not in text:
        sys.exit(f"the error does not name rank {ranks - 1}: {text}")
    done.touch()
    return text.splitlines()[0]


def shared_id(file: Path, rank: int) -> bytes:
    """The id that rank 0 makes and the others wait for."""
    if rank == 0:
        made = nccl.unique_id()
        temporary = file.with_suffix(".new")
        temporary.write_bytes(made)
        temporary.rename(file)
        return made
    while not file.exists():
        time.sleep(0.01)
    return file.read_bytes()


if __name__ == "__main__":
    main()
