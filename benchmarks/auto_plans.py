"""Times steps under `plan="auto"`, under a plan made by hand, and without a plan.

The cases are one late rank and then another, slow hosts, and links that change during the run.

    jaxcomm testbed run late_host.toml -- jaxcomm profile --late rank=3,ms=50 --out profile.json
    jaxcomm plan profile.json --out plan.json
    jaxcomm testbed run late_host.toml -- python benchmarks/auto_plans.py --plan plan.json

A step is a sum of `--bytes`; the late rank waits before it. In each phase "auto" first runs alone, so that it has time
to follow. Then the three kinds take turns of ten steps in random order. The first two steps of a turn do not count: a
step that ends late on one rank shortens that rank's next step, whatever its kind. The first process prints the medians
and their ratios. The plan made by hand runs without a trial.

`--late` names the late ranks, one per phase. With a slow host, name no rank, or the one for which the plan was made:

    FILE=benchmarks/slow_host.toml
    jaxcomm testbed run $FILE -- jaxcomm profile --late rank=1,ms=50 --out profile.json
    jaxcomm plan profile.json --out plan.json
    jaxcomm testbed run $FILE -- python benchmarks/auto_plans.py --plan plan.json --late 1

For no late rank, use `--late ""` here and no `--late` for the profile.

`--change_s` is the second at which the testbed's file changes links. Then no rank is late, and the plan is made for the
changed links:

    jaxcomm testbed run FILE_AS_AFTER_THE_CHANGE -- jaxcomm profile --out profile.json
    jaxcomm plan profile.json --out plan.json
    jaxcomm testbed run benchmarks/contended_uplinks.toml -- \\
        python benchmarks/auto_plans.py --plan plan.json --change_s 60

With `--back_s`, the second at which the testbed's file undoes the change, one more phase begins at that time.
"""

from __future__ import annotations

import random
import statistics
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import turns
from absl import app, flags
from jax import lax

import jaxcomm
from jaxcomm import ffi
from jaxcomm.cli.common import spmd
from jaxcomm.report.tables import seconds_text

BYTES = flags.DEFINE_integer("bytes", 4 << 20, "of each rank's buffer")
LATE_MS = flags.DEFINE_float("late_ms", 50.0, "by how many milliseconds the late rank is late", lower_bound=0)
LATE = flags.DEFINE_list(
    "late", ["-1", "1"], "the ranks that are late, one after the other; -1 is the last; none: nobody"
)
PLAN = flags.DEFINE_string("plan", None, "for the first late rank, for slow hosts, or for changed links", required=True)
CHANGE_S = flags.DEFINE_float("change_s", None, "seconds after the start at which links change", lower_bound=1)
BACK_S = flags.DEFINE_float("back_s", None, "seconds after the start at which links are as before", lower_bound=1)
ALONE = flags.DEFINE_integer("alone", 200, "steps under auto before each comparison", lower_bound=1)
OUT = flags.DEFINE_string("out", None, "also write the seconds of each turn to this file, as JSON", allow_override=True)
COMPARED = flags.DEFINE_integer("compared", 64, "steps of each kind, at least", lower_bound=1)
_TURN, _COUNTED = 10, 8  # steps


def main(_: list[str]) -> None:
    """Runs the steps; the first process prints."""
    began = time.monotonic()
    jax.distributed.initialize()
    jaxcomm.init(plan="auto", trial=False)
    mesh = spmd.mesh(jax.device_count())
    plans: dict[str, jaxcomm.plan.Plan | dict[str, str] | None] = {"auto": None, "no plan": {}}
    if CHANGE_S.value or not LATE.value:
        plans["by hand"] = jaxcomm.plan.load(PLAN.value)
        kinds = ["auto", "by hand", "no plan"]
        names = ["before the change", "after it", *["as before"] * bool(BACK_S.value)]
        phases = [(name, -1, kinds) for name in (names if CHANGE_S.value else ["nobody late"])]
    else:
        phases = []
        for late in (int(rank) % mesh.size for rank in LATE.value):
            by_hand = "by hand, moved" if phases else "by hand"
            plans[by_hand] = jaxcomm.plan.load(PLAN.value, {"straggler": late})
            phases.append((f"rank {late} late", late, ["auto", by_hand, "no plan"]))

    def step(x: jax.Array, late: jax.Array, *, plan: jaxcomm.plan.Plan | dict[str, str] | None) -> jax.Array:
        x = ffi.delay(x, jnp.where(lax.axis_index(spmd.AXIS) == late, LATE_MS.value / 1e3, 0.0))
        return jaxcomm.psum(x, spmd.AXIS, plan=plan)

    specs = (spmd.SPLIT, jax.sharding.PartitionSpec())
    zeros = spmd.place(np.zeros((mesh.size, BYTES.value // 4), np.float32), mesh, spmd.SPLIT)
    steps = {
        kind: jax.jit(
            jax.shard_map(partial(step, plan=plan), mesh=mesh, in_specs=specs, out_specs=spmd.SPLIT, check_vma=False)
        )
        for kind, plan in plans.items()
    }

    def seconds(kind: str, late: int) -> float:
        start = time.monotonic()
        spmd.wait(steps[kind](zeros, np.int32(late)))
        return time.monotonic() - start

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=spmd.SPLIT, out_specs=spmd.SPLIT, check_vma=False)
    def total(x: jax.Array) -> jax.Array:
        return jaxcomm.psum(x, spmd.AXIS, plan={})

    def has_passed(moment: float) -> bool:
        """Whether it has passed in any process. Sums by jaxcomm, as JAX's own collectives may use cut links."""
        mine = np.full((mesh.size, 1), time.monotonic() > moment, np.float32)
        return bool(total(spmd.place(mine, mesh, spmd.SPLIT)).addressable_shards[0].data.sum() > 0)

    rows = []
    for kind in plans:  # compiles
        seconds(kind, -1)
    for (name, late, kinds), moment in zip(phases, (None, CHANGE_S.value, BACK_S.value), strict=False):
        while moment and not has_passed(began + moment):
            for _ in range(10):
                seconds("auto", late)
        for _ in range(ALONE.value):
            seconds("auto", late)
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        order = random.Random(0)  # the same in all processes
        for _ in range(-(-COMPARED.value // _COUNTED)):
            for kind in order.sample(kinds, len(kinds)):
                times[kind] += [seconds(kind, late) for _ in range(_TURN)][-_COUNTED:]
        if jax.process_index() == 0:
            rows.append(turns.row(times, phase=name, bytes=BYTES.value))
            medians = {kind: statistics.median(each) for kind, each in times.items()}
            printed = "   ".join(f"{kind} {seconds_text(each)}" for kind, each in medians.items())
            auto, other, none = medians.values()
            print(
                f"{name}: {printed}   auto / by hand {auto / other:.3f}, auto / no plan {auto / none:.3f}",
                flush=True,
            )
    if jax.process_index() == 0:
        turns.write(OUT.value, rows)


if __name__ == "__main__":
    app.run(main)
