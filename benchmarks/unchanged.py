"""Collectives of unchanged programs over Gloo, MPI and jaxcomm, and jaxcomm.psum, by turns between the same processes.

    python benchmarks/unchanged.py --processes 4 --rounds 8
    MPITRAMPOLINE_LIB=…/libmpiwrapper.so python benchmarks/unchanged.py --peer mpi --calls psum,ppermute

All jobs are alive at once, and one works at a time; with `--alone`, only one job is alive at a time. The time is of
one call and its `block_until_ready` on process 0; medians and means over all rounds, in ms. A size is the number of
bytes that each device brings.

`--peer mpi` runs JAX's option `mpi` with the MPI that MPIwrapper wraps: it needs `mpirun` and that MPI's headers (on
Debian: openmpi-bin, libopenmpi-dev) and github.com/eschnett/MPIwrapper, built with CMake.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import turns

ARMS = ("gloo", "mpi", "unchanged", "jaxcomm")
OF_JAXCOMM = ("psum", "all_gather", "psum_scatter")
SIZES = {"1 KiB": 1 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "16 MiB": 16 << 20, "64 MiB": 64 << 20}
REPEATS = {"1 KiB": 200, "64 KiB": 100, "1 MiB": 25, "16 MiB": 5, "64 MiB": 2}
PR_SET_CHILD_SUBREAPER = 36
kept: list[int] = []  # open FIFOs
CALLS = ["psum", *(f"{kind} 1 MiB" for kind in ("all_gather", "psum_scatter"))]
CALLS += [f"{kind} {size}" for kind in ("ppermute", "all_to_all") for size in ("1 KiB", "1 MiB")]
CALLS += ["step"]


def is_asked(name: str, asked: list[str]) -> bool:
    """Whether a call's name is one of the names that were asked for, or begins with one."""
    return any(name == each or name.startswith((f"{each} ", f"{each},")) for each in asked)


def tasks(arm: str, asked: list[str]) -> dict[str, tuple[Callable[[], Any], int]]:
    """The timed calls, each with its number of repetitions in a round."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import jaxcomm

    ops: Any = jaxcomm if arm == "jaxcomm" else lax
    mesh = Mesh(np.array(jax.devices()), ("x",))
    count = mesh.size

    def place(value: np.ndarray, *spec: str) -> jax.Array:
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    def mapped(body: Callable[..., Any], value: jax.Array, out: PartitionSpec) -> Callable[[], Any]:
        step = jax.jit(
            jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec("x"), out_specs=out, check_vma=False),
        )
        return lambda: step(value)

    ring = [(rank, (rank + 1) % count) for rank in range(count)]
    kinds: dict[str, tuple[Callable[..., Any], PartitionSpec]] = {
        "psum": (lambda x: ops.psum(x, "x"), PartitionSpec()),
        "all_gather": (lambda x: ops.all_gather(x, "x"), PartitionSpec()),
        "psum_scatter": (lambda x: ops.psum_scatter(x, "x", tiled=True), PartitionSpec("x")),
        "ppermute": (lambda x: lax.ppermute(x, "x", ring), PartitionSpec("x")),
        "all_to_all": (lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True), PartitionSpec("x")),
    }
    found: dict[str, tuple[Callable[[], Any], int]] = {}
    for kind, (body, out) in kinds.items():
        for size, length in SIZES.items():
            name = f"{kind} {size}"
            if (arm == "jaxcomm" and kind not in OF_JAXCOMM) or not is_asked(name, asked):
                continue
            rows = count if kind in ("psum_scatter", "all_to_all") else 1
            ones = np.ones((count * rows, length // 4 // rows), np.float32)
            found[name] = mapped(body, place(ones, "x"), out), REPEATS[size]

    random = np.random.default_rng(0)
    host = {
        "w1": random.normal(size=(256, 1024)) * 0.05,
        "w2": random.normal(size=(1024, 1024)) * 0.03,
        "w3": random.normal(size=(1024, 16)) * 0.03,
    }
    host = {name: value.astype(np.float32) for name, value in host.items()}
    x, y = (place(random.normal(size=(32 * count, width)).astype(np.float32), "x") for width in (256, 16))

    def loss(p: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jnp.tanh(jnp.tanh(x @ p["w1"]) @ p["w2"]) @ p["w3"] - y) ** 2)

    def update(p: Any, grads: Any) -> Any:
        return jax.tree.map(lambda p, grad: p - 0.01 * grad, p, grads)

    def partitioned(*spec: str) -> Callable[[], Any]:
        params = {name: place(value, *spec) for name, value in host.items()}
        shardings = jax.tree.map(lambda p: p.sharding, params)
        step = jax.jit(lambda p, x, y: update(p, jax.grad(loss)(p, x, y)), out_shardings=shardings)
        return lambda: step(params, x, y)

    if not is_asked("step,", asked):
        return found
    if arm != "jaxcomm":
        found["step, parameters replicated"] = partitioned(), 12
        found["step, parameters sharded"] = partitioned("x"), 12
    params = {name: place(value) for name, value in host.items()}
    manual = jax.jit(
        jax.shard_map(
            lambda p, x, y: update(p, ops.pmean(jax.grad(loss)(p, x, y), "x")),
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec("x"), PartitionSpec("x")),
            out_specs=PartitionSpec(),
            check_vma=False,
        )
    )
    found["step, shard_map and pmean"] = (lambda: manual(params, x, y)), 12
    return found


def work(arm: str, folder: str, rounds: int, asked: list[str], arms: list[str]) -> None:
    """Runs in each process of a job: works when a byte arrives in the process's FIFO, and sleeps between its turns."""
    import jax

    jax.distributed.initialize()
    me, count = jax.process_index(), jax.process_count()
    doing = tasks(arm, asked)
    turns_of_mine, ends = fifo(folder, arm, me), fifo(folder, arm, "ends")
    after = arms[(arms.index(arm) + 1) % len(arms)]
    times: dict[str, list[list[float]]] = {name: [] for name in doing}  # by turn
    for turn in range(-1, rounds + 1):  # the first compiles; the last ends, as the end of a job would delay other jobs
        os.read(turns_of_mine, 1)
        if turn == rounds:
            break
        for name, (call, repeats) in doing.items():
            if turn >= 0:
                times[name].append([])
            for _ in range(2 if turn < 0 else repeats):
                begun = time.perf_counter()
                jax.block_until_ready(call())
                if turn >= 0:
                    times[name][-1].append(time.perf_counter() - begun)
        if me > 0:
            os.write(ends, b".")
            continue
        for _ in range(count - 1):
            os.read(ends, 1)
        begin_turn(folder, after, count)
    if me == 0:
        begin_turn(folder, after, count)
        Path(folder, f"{arm}.json").write_text(json.dumps(times))


def fifo(folder: str, arm: str, of: object) -> int:
    """Opens the FIFO of a job's process, or the FIFO of its processes' ends of turns."""
    path = Path(folder, f"{arm} {of}")
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path)
    return os.open(path, os.O_RDWR)  # also for writing, so that a read waits where no process writes


def begin_turn(folder: str, arm: str, processes: int) -> None:
    """Begins a turn of a job."""
    for process in range(processes):
        file = fifo(folder, arm, process)
        os.write(file, b".")
        kept.append(file)  # a FIFO that nobody has open loses its bytes


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose parent ends, such as the processes of an mpirun that aborts.

    Their processor time then counts as this process's, for `make claims`.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans() -> None:
    """Waits for the adopted processes, which end soon after their jobs."""
    deadline = time.monotonic() + 10
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.05)


def of_turns(name: str, found: dict[str, dict[str, list[list[float]]]]) -> dict[str, Any]:
    """The row of a call: for each arm that makes this call, the median of each turn."""
    medians = {arm: [statistics.median(turn) for turn in calls[name]] for arm, calls in found.items() if name in calls}
    return turns.row(medians, call=name)


def command(arm: str, processes: int, devices: int) -> list[str]:
    """The command that starts a job's processes, without the program."""
    if arm != "mpi":
        launch = [sys.executable, "-m", "jaxcomm.cli", "launch", "-n", str(processes)]
        # Gloo is slower if its processes are bound to processors.
        own = {"gloo": ["--no-bind"], "unchanged": ["--every-collective"]}.get(arm, [])
        return [*launch, "--devices-per-process", str(devices), *own]
    mpirun = shutil.which("mpirun")
    if mpirun is None or not Path(os.environ.get("MPITRAMPOLINE_LIB", "")).is_file():
        lacking = "mpirun is not in PATH" if mpirun is None else "MPITRAMPOLINE_LIB names no file"
        sys.exit(
            f"--peer mpi: {lacking}.\n  Cure: install an MPI, build github.com/eschnett/MPIwrapper against it, and set "
            "MPITRAMPOLINE_LIB to its libmpiwrapper.so."
        )
    # As `jaxcomm launch` binds processes, and as MPI binds up to two.
    return [mpirun, "--bind-to", "core:overload-allowed", "--oversubscribe", "-n", str(processes), sys.executable]


def environment(arm: str) -> dict[str, str]:
    """The environment of a job's processes."""
    own = {**os.environ, "JAX_PLATFORMS": "cpu"}
    if arm != "mpi":
        own.pop("MPITRAMPOLINE_LIB", None)
    else:
        own |= {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "mpi"}
        own |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return own


def run(arms: list[str], args: argparse.Namespace) -> dict[str, dict[str, list[list[float]]]]:
    """Runs the jobs of these arms by turns. Returns the seconds of each call in each turn, by arm and call."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = {}
        for arm in arms:
            work_of = ["--rounds", str(args.rounds), "--calls", args.calls, "--work", arm, folder, ",".join(arms)]
            start = command(arm, args.processes, args.devices)
            jobs[arm] = subprocess.Popen([*start, __file__, *work_of], env=environment(arm))
        begin_turn(folder, arms[0], args.processes)
        # A job has succeeded if it has written its times: jaxlib frees communicators after MPI_Finalize, so a job over
        # MPI fails at its end.
        times = {arm: Path(folder, f"{arm}.json") for arm in arms}
        while any(job.poll() is None for job in jobs.values()):
            if any(job.poll() and not times[arm].exists() for arm, job in jobs.items()):
                for job in jobs.values():
                    job.terminate()
            time.sleep(0.1)
        if failed := [arm for arm in arms if not times[arm].exists()]:
            sys.exit(f"failed: {', '.join(failed)}")
        return {arm: json.loads(times[arm].read_text()) for arm in arms}


def main() -> None:
    """Runs the jobs, and prints their medians and means beside each other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--devices", type=int, default=1, help="of each process; MPI takes one")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--peer", choices=["mpi"], help="beside Gloo, also over this library")
    parser.add_argument("--alone", action="store_true", help="run the jobs one after the other, not by turns")
    parser.add_argument("--calls", default=",".join(CALLS), help="kinds, or kinds and sizes; default: %(default)s")
    parser.add_argument("--out", help="also write the seconds of each turn to this file, as JSON")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        arm, folder, arms = args.work
        work(arm, folder, args.rounds, args.calls.split(","), arms.split(","))
        return
    if args.peer == "mpi" and args.devices != 1:
        sys.exit("--peer mpi: JAX runs one device per MPI process.\n  Cure: leave out --devices.")
    arms = [arm for arm in ARMS if arm != "mpi" or args.peer == "mpi"]
    adopt_orphans()
    found: dict[str, dict[str, list[list[float]]]] = {}
    for together in [[arm] for arm in arms] if args.alone else [arms]:
        found |= run(together, args)
    reap_orphans()
    turns.write(args.out, [of_turns(name, found) for name in found["gloo"]])
    for words, of in ("medians, ms", statistics.median), ("means, ms", statistics.mean):
        print(
            f"{words:32s}" + "".join(f"{arm:>11s}" for arm in arms) + "".join(f"{arm + ' ÷':>8s}" for arm in arms[:-2])
        )
        ratios: dict[str, list[float]] = {arm: [] for arm in arms[:-2]}
        for name in found["gloo"]:
            row = {arm: 1e3 * of(itertools.chain(*found[arm][name])) for arm in arms if name in found[arm]}
            for arm, of_arm in ratios.items():
                of_arm.append(row[arm] / row["unchanged"])
            shown = "".join(f"{row[arm]:11.3f}" if arm in row else f"{'–':>11s}" for arm in arms)
            print(f"{name:32s}{shown}" + "".join(f"{of_arm[-1]:8.2f}" for of_arm in ratios.values()))
        means = "".join(f"{statistics.geometric_mean(of_arm):8.2f}" for of_arm in ratios.values())
        print(f"{'geometric mean':32s}{'':{11 * len(arms)}s}{means}")
    print(f"÷: its time by that of unchanged programs over jaxcomm; load {os.getloadavg()}")


if __name__ == "__main__":
    main()
