"""Times steps whose late rank changes: under a plan for any late rank, under a plan for one rank, and without a plan.

    jaxcomm launch -n 4 --transport tcp -- python benchmarks/late_by_turns.py --late random

A step is a sum of `--bytes`. `--late` is the rank that waits `--late_ms` before it: a `random` rank in each step, the
next rank every 5 steps (`turns`), the `last` rank, or `nobody`. The kinds take turns of ten steps in random order, and
the first two steps of a turn do not count. The sums of each kind have the same bits on all ranks. The first process
prints medians. With `--tries` the plan for any late rank first has its trial in the run.
"""

from __future__ import annotations

import random
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import turns
from absl import app, flags
from jax import lax

import jaxcomm
from jaxcomm import ffi
from jaxcomm.cli.bench_late import single
from jaxcomm.cli.common import spmd
from jaxcomm.cli.common.arguments import Late
from jaxcomm.jax_compat.contexts import trying_plans
from jaxcomm.plan import Plan
from jaxcomm.plan.values import ANY_RANK
from jaxcomm.report.tables import seconds_text

BYTES = flags.DEFINE_integer("bytes", 8 << 20, "of each rank's buffer")
LATE = flags.DEFINE_enum("late", "random", ["random", "turns", "last", "nobody"], "the rank that is late in a step")
LATE_MS = flags.DEFINE_float("late_ms", 50.0, "by how many milliseconds it is late", lower_bound=0)
GRACE_MS = flags.DEFINE_float("grace_ms", 1.0, "milliseconds after which the last rank is missing")
SCHEDULE = flags.DEFINE_string("schedule", "straggler", "of a late rank, as `jaxcomm bench --schedules` names it")
TRIES = flags.DEFINE_boolean("tries", False, "whether the plan for whichever rank is late is tried first")
OUT = flags.DEFINE_string("out", None, "also write the seconds of each turn to this file, as JSON", allow_override=True)
COMPARED = flags.DEFINE_integer("compared", 40, "steps of each kind", lower_bound=8)
_TURN, _COUNTED, _LEAST_TRIED = 10, 8, 80  # steps


def main(_: list[str]) -> None:
    """Runs the steps; the first process prints."""
    jax.distributed.initialize()
    jaxcomm.init()
    mesh = spmd.mesh(jax.device_count())
    fixed = single(SCHEDULE.value, mesh.size, Late(mesh.size - 1, LATE_MS.value / 1e3))
    plans = {"by turns": _by_turns(fixed), "fixed": fixed, "no plan": {}}
    specs = (spmd.SPLIT, jax.sharding.PartitionSpec())

    def compiled(plan: Plan | dict[str, str]) -> jax.stages.Wrapped:
        def body(x: jax.Array, late: jax.Array) -> jax.Array:
            x = ffi.delay(x, jnp.where(lax.axis_index(spmd.AXIS) == late, LATE_MS.value / 1e3, 0.0))
            return jaxcomm.psum(x, spmd.AXIS, plan=plan)

        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=spmd.SPLIT, check_vma=False))

    kinds = {kind: (compiled(plan), kind == "by turns" and TRIES.value) for kind, plan in plans.items()}
    zeros = spmd.place(np.zeros((mesh.size, BYTES.value // 4), np.float32), mesh, spmd.SPLIT)
    order = random.Random(0)  # the same in all processes
    steps = 0

    def seconds(kind: str) -> float:
        nonlocal steps
        late = {"random": order.randrange(mesh.size), "turns": steps // 5, "last": -1, "nobody": -1}[LATE.value]
        rank = -1 if LATE.value == "nobody" else late % mesh.size
        steps += 1
        function, tries = kinds[kind]
        start = time.monotonic()
        with trying_plans(tries):
            spmd.wait(function(zeros, np.int32(rank)))
        return time.monotonic() - start

    for kind in ["fixed", "no plan", *["by turns"] * (_LEAST_TRIED if TRIES.value else 1)]:
        seconds(kind)
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(COMPARED.value // _COUNTED):
        for kind in order.sample([*kinds], len(kinds)):
            times[kind] += [seconds(kind) for _ in range(_TURN)][-_COUNTED:]
    if jax.process_index() == 0:
        turns.write(OUT.value, [turns.row(times, late=LATE.value, bytes=BYTES.value)])
        medians = {kind: statistics.median(each) for kind, each in times.items()}
        words = "   ".join(f"{kind} {seconds_text(each)}" for kind, each in medians.items())
        ratio = medians["by turns"] / medians["no plan"]
        print(f"{LATE.value} late: {words}   by turns / no plan {ratio:.3f}", flush=True)


def _by_turns(fixed: Plan) -> Plan:
    """The plan that runs the schedule of `fixed` for whichever rank is late, and direct if none is late."""
    document = fixed.model_dump(exclude={"hash"})
    (entry,) = document["collectives"]
    late, direct = {**entry["schedule"], "late": ANY_RANK}, {"kind": "direct"}
    entry["schedule"] = direct
    entry["selector"] = {
        "rank": ANY_RANK,
        "lateness_s": GRACE_MS.value / 1e3,
        "early": direct,
        "late": late,
        "seconds": 0.0,
    }
    return Plan.model_validate(document)


if __name__ == "__main__":
    app.run(main)
