"""Trains on racks with a contended uplink: with groups that follow the contention, or with the exact sum.

    jaxcomm testbed run benchmarks/contended_groups.toml -- python benchmarks/contended_groups.py
    jaxcomm testbed run benchmarks/contended_groups.toml -- python benchmarks/contended_groups.py --sync jaxcomm

A perceptron learns handwritten digits, with a process per worker. The plan has two racks with half of the ranks each,
whose uplinks are as fast as a host's link. After every 96 steps it prints the seconds since the start, the time of a
step, the loss, the accuracy of the workers' mean variables on test data, the workers' distance from each other, and the
reason that train.adjust_groups gives for new groups or after a measurement. With --keep the plan's groups stay.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))

from common import devices

devices.prepare(workers=1)

import jax
import jax.numpy as jnp

import jaxcomm
from common import synchronisation
from common.digits import digits
from common.synchronisation import Average
from common.training import Training
from jaxcomm import planner, train
from jaxcomm.profile import Link, Profile, Provenance, Rack

UNITS = 448  # width of each of two layers: a model of 0.9 MiB
EVERY = 96
MBIT_S = 500


def plan(ranks: int, nbytes: int) -> jaxcomm.plan.Plan:
    """The plan for the network before others use it."""
    half = ranks // 2
    racks = [Rack(name=f"rack {i}", ranks=[*range(half * i, half * i + half)], uplink=1.0) for i in range(2)]
    beta = 8e-6 / MBIT_S
    cluster = Profile(
        ranks=ranks,
        link=Link(alpha_s=2e-4, beta_s_per_byte=beta, source=f"{MBIT_S} Mbit/s"),
        racks=racks,
        collective={"bytes": nbytes, "seconds": nbytes * beta},
        provenance=Provenance(source="two racks", tool="benchmarks"),
    )
    return planner.plan(cluster)


def main() -> None:
    """Trains for `--seconds`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sync", choices=("ds-sync", "jaxcomm"), default="ds-sync")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--keep", action="store_true", help="the plan's groups, whatever happens")
    given = parser.parse_args()
    began, mesh, task = time.monotonic(), devices.mesh(), digits(UNITS)
    model = jax.eval_shape(task.init, jax.random.key(0))
    nbytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(model))
    made = plan(mesh.size, nbytes)
    jaxcomm.init(mesh)
    how = synchronisation.by_name(given.sync, mesh.size, plan=made)
    if given.sync == "ds-sync":
        how = replace(how, average=_follows_table(made))
    trained = Training(task, how, mesh)
    state, adjustment, done = trained.init(0), None, 0
    devices.say(f"{given.sync} on {mesh.size} ranks, {nbytes / 2**20:.2f} MiB; s, ms per step, accuracy, apart:")
    while devices.from_first(time.monotonic() - began < given.seconds):
        jaxcomm.reset_stats()
        start = time.monotonic()
        state, losses = trained.steps(state, EVERY)
        loss = float(losses.mean())
        step_s = (time.monotonic() - start) / EVERY
        done += EVERY
        score = trained.score(state)
        devices.say(
            f"{time.monotonic() - began:4.0f} s  step {done:5}  {1e3 * step_s:6.1f} ms  loss {loss:.5f}  "
            + "  ".join(f"{name} {value:.4f}" for name, value in score.items())
        )
        if given.sync == "ds-sync" and not given.keep:
            adjustment = train.adjust_groups(made, adjustment, steps=EVERY)
            if adjustment.changed or "were measured" in adjustment.reason:
                devices.say(f"     {adjustment.reason}")
            if adjustment.changed:
                state = state.with_average(adjustment.table)


def _follows_table(made: jaxcomm.plan.Plan) -> Average:
    """Divide and shuffle, with the table of groups in each worker's state."""
    average, table = train.divide_and_shuffle(made, devices.AXIS), train.group_table(made)

    def update(variables: Any, table: jax.Array, step: jax.Array) -> tuple[Any, jax.Array]:
        return average(variables, step, table), table

    return Average(lambda _: jnp.asarray(table), update)


if __name__ == "__main__":
    main()
