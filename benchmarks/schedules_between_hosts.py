"""Times of an all-reduce between hosts: without a plan, by named schedules, and by `jax.lax.psum`, in turn.

jaxcomm testbed run FILE -- python benchmarks/schedules_between_hosts.py --bytes 4194304 --schedules direct,ring
"""

from __future__ import annotations

import random
import statistics
import time
from functools import partial
from typing import Any

import jax
import numpy as np
import turns
from absl import app, flags

import jaxcomm
from jaxcomm.cli.bench_late import single
from jaxcomm.cli.common import spmd
from jaxcomm.cli.common.arguments import Late
from jaxcomm.plan import Plan
from jaxcomm.report.tables import bytes_text, seconds_text, table

BYTES = flags.DEFINE_multi_integer("bytes", [1 << 20], "of each rank's buffer; may be given several times")
ROUNDS = flags.DEFINE_integer("rounds", 20, "turns of each way", lower_bound=1)
SCHEDULES = flags.DEFINE_list("schedules", ["direct", "ring"], "beside what runs without a plan")
OUT = flags.DEFINE_string("out", None, "also write the seconds of each turn to this file, as JSON", allow_override=True)
LAX, NONE = "jax.lax", "without a plan"


def call(x: Any, way: str, plan: Plan | None) -> Any:
    return jax.lax.psum(x, spmd.AXIS) if way == LAX else jaxcomm.psum(x, spmd.AXIS, plan=plan or {})


def main(_: list[str]) -> None:
    jax.distributed.initialize()
    jaxcomm.init(trial=False)
    mesh = spmd.mesh(jax.device_count())
    plans = {name: single(name, mesh.size, Late(mesh.size - 1, 1e-3)) for name in SCHEDULES.value}
    ways: dict[str, Plan | None] = {NONE: None, **plans, LAX: None}
    in_and_out = {"in_specs": spmd.SPLIT, "out_specs": spmd.SPLIT, "check_vma": False}
    rows, written = [], []
    for nbytes in BYTES.value:
        x = spmd.place(np.zeros((mesh.size, nbytes // 4), np.float32), mesh, spmd.SPLIT)
        steps = {
            way: jax.jit(jax.shard_map(partial(call, way=way, plan=plan), mesh=mesh, **in_and_out))
            for way, plan in ways.items()
        }
        found: dict[str, list[float]] = {way: [] for way in ways}
        for step in steps.values():
            jax.block_until_ready(step(x))
        order, dice = [*ways], random.Random(0)
        for _ in range(ROUNDS.value):
            dice.shuffle(order)
            for way in order:
                start = time.perf_counter()
                jax.block_until_ready(steps[way](x))
                found[way].append(time.perf_counter() - start)
        written.append(turns.row(found, bytes=nbytes))
        rows.append([bytes_text(nbytes), *(seconds_text(statistics.median(found[way])) for way in ways)])
    if jax.process_index() == 0:
        turns.write(OUT.value, written)
        print(table(["bytes", *ways], rows))


if __name__ == "__main__":
    app.run(main)
