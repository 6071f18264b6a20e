"""Collectives of unchanged programs over Gloo and over jaxcomm, and jaxcomm.psum, by turns between the same processes.

    python benchmarks/unchanged.py --processes 4 --rounds 8

Three jobs are alive at once, of which one works at a time. The time is that of one call and its `block_until_ready` on
process 0; medians over all rounds, in ms.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import turns

ARMS = ("gloo", "unchanged", "jaxcomm")
SIZES = {"1 KiB": 1 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "16 MiB": 16 << 20, "64 MiB": 64 << 20}
REPEATS = {"1 KiB": 200, "64 KiB": 100, "1 MiB": 25, "16 MiB": 5, "64 MiB": 2}


def tasks(arm: str) -> dict[str, tuple[Callable[[], Any], int]]:
    """The calls that are timed, with their number in a round."""
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

    found: dict[str, tuple[Callable[[], Any], int]] = {}
    for name, size in SIZES.items():
        ones = place(np.ones((count, size // 4), np.float32), "x")
        found[f"psum {name}"] = mapped(lambda x: ops.psum(x, "x"), ones, PartitionSpec()), REPEATS[name]
    parts = place(np.ones((count, 1 << 18), np.float32), "x")
    found["all_gather 1 MiB"] = mapped(lambda x: ops.all_gather(x, "x"), parts, PartitionSpec()), 25
    rows = place(np.ones((count * count, 1 << 16), np.float32), "x")
    scattered = mapped(lambda x: ops.psum_scatter(x, "x", tiled=True), rows, PartitionSpec("x"))
    found["psum_scatter 1 MiB"] = scattered, 25
    if arm != "jaxcomm":
        ring = [(rank, (rank + 1) % count) for rank in range(count)]
        few = place(np.ones((count * count, 1 << 6), np.float32), "x")
        for size, operand, repeats in (("1 KiB", few, 100), ("1 MiB", rows, 25)):
            permute = mapped(lambda x: lax.ppermute(x, "x", ring), operand, PartitionSpec("x"))
            exchange = mapped(lambda x: lax.all_to_all(x, "x", 0, 0, tiled=True), operand, PartitionSpec("x"))
            found[f"ppermute {size}"], found[f"all_to_all {size}"] = (permute, repeats), (exchange, repeats)

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


def work(arm: str, board_path: str, out: str, rounds: int) -> None:
    """Runs in each process of a job: takes its turns, as the board says."""
    import jax

    jax.distributed.initialize()
    me, count, mine = jax.process_index(), jax.process_count(), ARMS.index(arm)
    doing = tasks(arm)
    with open(board_path, "r+b") as file:
        board = mmap.mmap(file.fileno(), 4096)
    times: dict[str, list[list[float]]] = {name: [] for name in doing}  # by turn
    for turn in range(-1, rounds):  # the first compiles
        number = (turn + 1) * len(ARMS) + mine
        while struct.unpack_from("q", board, 0)[0] != number:
            time.sleep(0.003)
        for name, (call, repeats) in doing.items():
            if turn >= 0:
                times[name].append([])
            for _ in range(2 if turn < 0 else repeats):
                begun = time.perf_counter()
                jax.block_until_ready(call())
                if turn >= 0:
                    times[name][-1].append(time.perf_counter() - begun)
        struct.pack_into("q", board, 8 * (1 + me), number + 1)
        while me == 0 and any(struct.unpack_from("q", board, 8 * (1 + p))[0] != number + 1 for p in range(count)):
            time.sleep(0.001)
        if me == 0:
            struct.pack_into("q", board, 0, number + 1)
    if me == 0:
        Path(out, f"{arm}.json").write_text(json.dumps(times))


def of_turns(name: str, found: dict[str, dict[str, list[list[float]]]]) -> dict[str, Any]:
    """The row of a call: the median of each turn of each arm that makes it."""
    medians = {arm: [statistics.median(turn) for turn in calls[name]] for arm, calls in found.items() if name in calls}
    return turns.row(medians, call=name)


def main() -> None:
    """Starts the jobs, and prints their medians beside each other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", help="also write the seconds of each turn to this file, as JSON")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(*args.work, args.rounds)
        return
    with tempfile.TemporaryDirectory() as out:
        board = Path(out, "board")
        board.write_bytes(bytes(4096))
        jobs = []
        for arm in ARMS:
            way = ["--every-collective"] * (arm == "unchanged")
            launch = [sys.executable, "-m", "jaxcomm.cli", "launch", "-n", str(args.processes), *way]
            mine = [__file__, "--rounds", str(args.rounds), "--work", arm, str(board), out]
            jobs.append(subprocess.Popen([*launch, *mine], env={**os.environ, "JAX_PLATFORMS": "cpu"}))
        if max(job.wait() for job in jobs):
            sys.exit("a job failed")
        found = {arm: json.loads(Path(out, f"{arm}.json").read_text()) for arm in ARMS}
    turns.write(args.out, [of_turns(name, found) for name in found["gloo"]])
    print(f"{'ms':32s}" + "".join(f"{arm:>11s}" for arm in ARMS) + "   Gloo / unchanged")
    for name in found["gloo"]:
        row = [
            1e3 * statistics.median(itertools.chain(*found[arm][name])) if name in found[arm] else None for arm in ARMS
        ]
        shown = "".join(f"{value:11.3f}" if value is not None else f"{'–':>11s}" for value in row)
        assert row[0] is not None and row[1] is not None
        print(f"{name:32s}{shown}{row[0] / row[1]:12.2f}")
    print(f"load {os.getloadavg()}")


if __name__ == "__main__":
    main()
