"""Four processes, one late: the times until the others have done their part, and until the sum is ready.

Run from the repository's root: `.venv/bin/python benchmarks/late_rank_by_xla.py 1`, for buffers of 1 MiB over Gloo, or
`… 64 cuda` over NCCL, where the processes share one GPU if there is only one.

Rank 3 is 2 s late in each step. XLA's own collectives run everything; the core is not loaded.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import Any

RANKS, LATE, SECONDS, TURNS = 4, 3, 2.0, 3


def job(mebibytes: int, platform: str, rank: int, port: int) -> None:
    """One process: prints, for each part, the seconds from the step's start to its end on this rank."""
    os.environ |= {
        "JAX_PLATFORMS": "cpu" if platform == "cpu" else f"{platform},cpu",
        "PJRT_NPROC": "32",
        "JAXCOMM_EXECUTOR": "xla",
    }
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    from jaxcomm import schedules
    from jaxcomm.collectives.permutes import late_join
    from jaxcomm.collectives.permutes.rounds import Ranks, run
    from jaxcomm.collectives.permutes.steps import in_lines
    from jaxcomm.program.permutes import compile_permutes

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", RANKS, rank)
    mesh = Mesh(jax.devices(), ("x",))
    ranks = Ranks(("x",), [range(RANKS)], RANKS)
    straggler, join = schedules.straggler(RANKS, LATE, 12), schedules.late_join(RANKS, LATE, 4)
    assert straggler.precondition
    begin, size = [0.0], mebibytes << 18

    def permuted(schedule: Any) -> Any:
        program = compile_permutes(schedule, max(1, schedule.num_chunks // 8))
        return lambda v: run(program, v, in_lines(size, 4, schedule.num_chunks), ranks, lax.add)

    def whole_collectives(v: Any) -> Any:
        return late_join.run(join, v, in_lines(size, 4, join.num_chunks), ranks, lax.add, platform)

    parts = {
        "others' reduce-scatter by permutes": permuted(straggler.precondition),
        "others' psum in a group": lambda v: lax.psum(v, "x", axis_index_groups=[[0, 1, 2], [3]]),
        "straggler by permutes": permuted(straggler),
        "late join by whole collectives": whole_collectives,
        "lax.psum": lambda v: lax.psum(v, "x"),
    }

    def sleep(index: Any, v: Any) -> Any:
        if int(index) == LATE and begin[0]:
            time.sleep(SECONDS)
        return v

    x = jax.make_array_from_callback(
        (RANKS, size), NamedSharding(mesh, P("x")), lambda _: np.ones((1, size), np.float32)
    )
    for name, part in parts.items():

        def body(v: Any, part: Any = part) -> Any:
            first = jax.pure_callback(sleep, jax.ShapeDtypeStruct((1,), jnp.float32), lax.axis_index("x"), v[0, :1])
            return part(v[0].at[:1].set(first))[None]

        step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False))
        begin[0] = 0.0
        jax.block_until_ready(step(x))  # compiles, and connects
        for _ in range(TURNS):
            multihost_utils.sync_global_devices(name)
            begin[0] = time.perf_counter()
            result = jax.block_until_ready(step(x))
            print(f"{name}\t{rank}\t{time.perf_counter() - begin[0]:.4f}", flush=True)
            if "others" not in name:
                assert float(result.addressable_shards[0].data[0, 7]) == RANKS
    multihost_utils.sync_global_devices("end")


def main(mebibytes: str, platform: str) -> None:
    """Starts the processes and prints a table."""
    from jaxcomm.gpu.checks import ranks
    from jaxcomm.report.tables import table

    gpus = ranks.gpus() if platform == "cuda" else RANKS
    environment = os.environ | (ranks.SHARED if gpus < RANKS else {})

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, mebibytes, platform]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(port)],
            env=environment | {"JAX_LOCAL_DEVICE_IDS": str(rank % gpus)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    lines = [line for process in started for line in process.communicate(timeout=240)[0].splitlines() if "\t" in line]
    if any(process.returncode for process in started):
        raise SystemExit("a process failed")
    rows = []
    for name in dict.fromkeys(line.split("\t")[0] for line in lines):
        found = [line.split("\t")[1:] for line in lines if line.startswith(f"{name}\t")]
        early = [float(seconds) for rank, seconds in found if int(rank) != LATE]
        last = [float(seconds) for rank, seconds in found if int(rank) == LATE]
        rows.append([name, f"{min(early) * 1e3:.0f} to {max(early) * 1e3:.0f} ms", f"{max(last) * 1e3:.0f} ms"])
    print(table([f"{mebibytes} MiB, rank {LATE} late by {SECONDS:g} s", "done on the others", "on the late"], rows))


if __name__ == "__main__":
    size, on, *place = [*sys.argv[1:], "cpu"] if len(sys.argv) == 2 else sys.argv[1:]
    if place:
        job(int(size), on, *map(int, place))
    else:
        main(size, on)
