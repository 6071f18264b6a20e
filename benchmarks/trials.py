"""Times steps under a plan with a trial in the run, under the same plan without a trial, and without a plan.

    jaxcomm launch -n 4 --transport tcp -- python benchmarks/trials.py --late nobody

A step is a sum of `--bytes`. The plan has one schedule, which expects the last rank to be late. `--late` is the rank
that waits `--late_ms` before a step: the `last` rank, `nobody`, a `random` rank in each step, or the next rank every 5
steps (`turns`). Steps under the trial run alone until the trial has an outcome. Then the kinds take turns of ten steps
in random order, and the first two steps of a turn do not count. The first process prints medians.
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
from jaxcomm.report.run.sites import trial_text
from jaxcomm.report.tables import seconds_text

BYTES = flags.DEFINE_integer("bytes", 4 << 20, "of each rank's buffer")
LATE = flags.DEFINE_enum("late", "last", ["last", "nobody", "random", "turns"], "the rank that is late in a step")
LATE_MS = flags.DEFINE_float("late_ms", 20.0, "by how many milliseconds it is late", lower_bound=0)
SCHEDULE = flags.DEFINE_string("schedule", "straggler", "the plan's, as `jaxcomm bench --schedules` names it")
ALONE = flags.DEFINE_integer("alone", 80, "steps under the trial before the comparison", lower_bound=72)
OUT = flags.DEFINE_string("out", None, "also write the seconds of each turn to this file, as JSON", allow_override=True)
COMPARED = flags.DEFINE_integer("compared", 80, "steps of each kind", lower_bound=8)
_TURN, _COUNTED = 10, 8  # steps


def main(_: list[str]) -> None:
    """Runs the steps; the first process prints."""
    jax.distributed.initialize()
    jaxcomm.init()
    mesh = spmd.mesh(jax.device_count())
    plan = single(SCHEDULE.value, mesh.size, Late(mesh.size - 1, LATE_MS.value / 1e3))

    def step(x: jax.Array, late: jax.Array, *, planned: bool) -> jax.Array:
        x = ffi.delay(x, jnp.where(lax.axis_index(spmd.AXIS) == late, LATE_MS.value / 1e3, 0.0))
        return jaxcomm.psum(x, spmd.AXIS, plan=plan if planned else {})

    specs = (spmd.SPLIT, jax.sharding.PartitionSpec())

    def compiled(planned: bool) -> jax.stages.Wrapped:
        def body(x: jax.Array, late: jax.Array) -> jax.Array:
            return step(x, late, planned=planned)

        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=spmd.SPLIT, check_vma=False))

    kinds = {"tried": (compiled(True), True), "plan": (compiled(True), False), "no plan": (compiled(False), False)}
    zeros = spmd.place(np.zeros((mesh.size, BYTES.value // 4), np.float32), mesh, spmd.SPLIT)
    order = random.Random(0)  # the same in all processes
    steps = 0

    def seconds(kind: str) -> float:
        nonlocal steps
        lates = {"last": mesh.size - 1, "nobody": -1, "random": order.randrange(mesh.size), "turns": steps // 5}
        late = np.int32(lates[LATE.value] % mesh.size if LATE.value == "turns" else lates[LATE.value])
        steps += 1
        function, tries = kinds[kind]
        start = time.monotonic()
        with trying_plans(tries):
            spmd.wait(function(zeros, late))
        return time.monotonic() - start

    for kind in ["plan", "no plan", *["tried"] * ALONE.value]:
        seconds(kind)
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    steps = 0
    for _ in range(COMPARED.value // _COUNTED):
        for kind in order.sample([*kinds], len(kinds)):
            times[kind] += [seconds(kind) for _ in range(_TURN)][-_COUNTED:]
    if jax.process_index() == 0:
        turns.write(OUT.value, [turns.row(times, late=LATE.value, bytes=BYTES.value)])
        medians = {kind: statistics.median(each) for kind, each in times.items()}
        trial = next(site["trial"] for site in jaxcomm.stats() if site.get("trial"))
        words = "   ".join(f"{kind} {seconds_text(each)}" for kind, each in medians.items())
        ratio = medians["tried"] / medians["no plan"]
        print(f"{LATE.value} late: {words}   tried / no plan {ratio:.3f}; trial {trial_text(trial)}", flush=True)


if __name__ == "__main__":
    app.run(main)
