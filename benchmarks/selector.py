"""Times calls of a plan with a selector, beside the same plan without it, while a rank is late at times.

    jaxcomm testbed run late_host.toml -- jaxcomm profile --out profile.json
    jaxcomm testbed run late_host.toml -- python benchmarks/selector.py profile.json

The last rank is late by `--late_ms` for 20 steps, then on time for 20, and so on. The plan is made from the profile's
links and these arrivals. The kinds take turns, with the same lateness for each. The first process prints their mean
times from the last arrival to the end, and the plan's predictions.
"""

from __future__ import annotations

import time

import jax
import numpy as np
from absl import app, flags
from jax.experimental import multihost_utils

import jaxcomm
from jaxcomm import planner, profile
from jaxcomm.cli.common import spmd
from jaxcomm.plan import Plan
from jaxcomm.report.tables import seconds_text, table

BYTES = flags.DEFINE_integer("bytes", 4 << 20, "of each rank's buffer")
LATE_MS = flags.DEFINE_float("late_ms", 50.0, "by how many milliseconds the late rank is late", lower_bound=0)
STEPS = flags.DEFINE_integer("steps", 160, "calls of each kind", lower_bound=40)
LASTS = 20  # steps
JITTER_S = 1e-3


def made(path: str, ranks: int, delays: np.ndarray) -> Plan:
    """The plan for calls of `--bytes` with these delays."""
    arrivals = np.random.default_rng(0).uniform(0, JITTER_S, (len(delays), ranks))
    arrivals[:, -1] += delays
    arrivals -= arrivals.min(axis=1, keepdims=True)
    measured = profile.load(path).model_dump()
    seen = {"arrivals": arrivals.tolist(), "buckets": [], "collective": {"bytes": BYTES.value, "seconds": 0.1}}
    return planner.plan(profile.validate(measured | seen, path))


def main(words: list[str]) -> None:
    """Runs the calls, and prints on the first process."""
    jax.distributed.initialize()
    jaxcomm.init(trial=False)
    mesh = spmd.mesh(jax.device_count())
    delays = np.where(np.arange(STEPS.value) // LASTS % 2 == 0, LATE_MS.value / 1e3, 0.0)
    selecting = made(words[1], mesh.size, delays)
    entries = [entry.model_copy(update={"selector": None}) for entry in selecting.collectives]
    plans = {"selector": selecting, "static": selecting.model_copy(update={"collectives": tuple(entries)}), "none": {}}
    x = spmd.place(np.zeros((mesh.size, BYTES.value // 4), np.float32), mesh, spmd.SPLIT)
    calls = {
        kind: jax.jit(
            jax.shard_map(
                lambda v, plan=plan: jaxcomm.psum(v, spmd.AXIS, plan=plan),
                mesh=mesh,
                in_specs=spmd.SPLIT,
                out_specs=spmd.SPLIT,
                check_vma=False,
            )
        )
        for kind, plan in plans.items()
    }
    for call in calls.values():
        call(x).block_until_ready()
    took: dict[str, list[float]] = {kind: [] for kind in plans}
    for delay in delays.tolist():
        for kind, call in calls.items():
            multihost_utils.sync_global_devices(kind)
            began = time.perf_counter()
            if jax.process_index() == mesh.size - 1:
                time.sleep(delay)
            call(x).block_until_ready()
            took[kind].append(time.perf_counter() - began - delay)
    if jax.process_index() == 0:
        entry = selecting.collectives[selecting.index_for(BYTES.value)]
        predicted = {
            "selector": entry.selector.seconds if entry.selector else None,
            "static": entry.predicted.seconds,
            "none": entry.predicted.direct,
        }
        rows = []
        for kind, seconds in took.items():
            times, expected = np.array(seconds), predicted[kind]
            means = [times.mean(), times[delays > 0].mean(), times[delays == 0].mean()]
            rows.append([kind, *map(seconds_text, means), None if expected is None else seconds_text(expected)])
        print(table(["calls", "mean", "late", "on time", "predicted"], rows), flush=True)


if __name__ == "__main__":
    app.run(main)
