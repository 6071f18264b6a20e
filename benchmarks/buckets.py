"""Times a step that sums its gradients in a plan's buckets, after or inside the backward pass, or by one call.

    python benchmarks/buckets.py --layers 8 --width 1024 --batch 32 --late 20

Eight host devices train a perceptron, once with no late rank and once with rank 3 late by `--late` milliseconds. Each
time the benchmark profiles the devices (links, late rank, when each gradient is ready) and plans the step, as the
commands do. The three sides take turns; `step` is the median over all steps. The other columns come from further steps
with marked gradients and sums. They are times since the step's call, medians over devices and steps. Sums that end
before the last gradient is ready overlap with the backward pass. If the plan has different schedules for the size of
all gradients and for the buckets, the sides differ in that, too.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from collections.abc import Callable
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["PJRT_NPROC"] = "32"  # fewer threads can hang XLA's CPU backend
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

import jaxcomm
from jaxcomm import ffi, planner, profile, train
from jaxcomm.cli.common import spmd
from jaxcomm.cli.common.timing import Side, take_turns
from jaxcomm.collectives.buckets import in_backward
from jaxcomm.ffi import marks
from jaxcomm.measure import measure_devices, measure_gradients
from jaxcomm.plan import Plan
from jaxcomm.report.tables import bytes_text, table

DEVICES = 8
LATE = 3
ROUNDS = 8
MARKED_STEPS = 10
DONE = 10_000  # marks of sums are numbered from here, marks of gradients from 0
SIDES = ("one call", "buckets after the backward pass", "buckets from inside it")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=32, help="rows a rank")
    parser.add_argument("--late", type=float, default=20.0, help="ms by which rank 3 is late, the second time")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    params = {
        f"layer{i}": {
            "w": np.asarray(rng.standard_normal((args.width, args.width)) / args.width**0.5, np.float32),
            "b": np.zeros(args.width, np.float32),
        }
        for i in range(args.layers)
    }
    x = rng.standard_normal((DEVICES * args.batch, args.width)).astype(np.float32)
    for seconds in (0.0, args.late / 1e3):
        report(params, x, seconds)


def report(params: Any, x: Any, late_s: float) -> None:
    """Prints one table: the three sides with rank 3 late by `late_s`."""
    measured = measure_devices(DEVICES, late={LATE: late_s} if late_s else {})
    gradients = measure_gradients(loss, params, x[: len(x) // DEVICES], devices=DEVICES)
    plan = planner.plan(profile.with_gradients(measured, gradients, "the benchmark"))
    mesh = spmd.mesh(DEVICES)
    batch = spmd.place(x, mesh, spmd.SPLIT)

    def compiled(side: str, marked: bool) -> Callable[[Any], Any]:
        def step(params: Any, x: Any) -> Any:
            late = jnp.where(jax.lax.axis_index(spmd.AXIS) == LATE, late_s, 0.0)
            grads = averaged(side, plan, params, ffi.delay(x, late) if late_s else x, marked)
            return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)

        specs = (spmd.SAME, spmd.SPLIT)
        mapped = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=spmd.SAME, check_vma=False)
        donated = jax.jit(mapped, donate_argnums=0)
        return lambda params: donated(params, batch)

    def start() -> Any:
        return spmd.wait(spmd.place(params, mesh, spmd.SAME))

    turns = take_turns({name: Side(compiled(name, False), start()) for name in SIDES}, ROUNDS, lambda: None)
    rows = []
    for name in SIDES:
        side = Side(compiled(name, True), start())
        times = [times_of(marks.record(side)) for _ in range(MARKED_STEPS)]
        medians = [statistics.median(column) for column in zip(*times, strict=True)]
        step = statistics.median(itertools.chain(*turns[name]))
        rows.append([name, *(f"{1e3 * each:.1f}" for each in [step, *medians])])
    assert plan.step is not None
    buckets = ", ".join(bytes_text(bucket.bytes) for bucket in plan.step.planned)
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    print(f"\nRank {LATE} late by {1e3 * late_s:g} ms" if late_s else "All ranks alike", end="; ")
    print(f"{bytes_text(total)} of gradients; {len(plan.step.planned)} buckets: {buckets}")
    header = ["ms", "step", "first gradient", "last gradient", "first sum", "last sum"]
    print(table(header, rows))


def loss(params: Any, x: Any) -> Any:
    """The mean square of a perceptron's outputs."""
    for layer in params.values():
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return jnp.mean(x * x)


def averaged(side: str, plan: Plan, params: Any, x: Any, marked: bool) -> Any:
    """The gradients, averaged in this side's way. If `marked`, marks when they are ready and when they are summed."""

    def loss_of(params: Any) -> Any:
        if side == SIDES[2]:
            params = train.pmean_in_backward(hooked(params, DONE) if marked else params, spmd.AXIS, plan=plan)
        return loss(hooked(params, 0) if marked else params, x)

    grads = jax.grad(loss_of)(params)
    if side == SIDES[2]:
        return grads
    pmean = jaxcomm.pmean if side == SIDES[0] else train.pmean_buckets
    grads = pmean(grads, spmd.AXIS, plan=plan)
    return marked_leaves(grads, DONE) if marked else grads


def hooked(params: Any, first: int) -> Any:
    """The parameters, with hooks that mark their gradients with numbers from `first` on."""
    leaves, tree = jax.tree.flatten(params)
    same = [
        in_backward([leaf], lambda leaves: leaves, lambda grads, i=i: [marks.mark(grads[0], first + i)])[0]
        for i, leaf in enumerate(leaves)
    ]
    return tree.unflatten(same)


def marked_leaves(grads: Any, first: int) -> Any:
    """The gradients, marked with numbers from `first` on."""
    leaves, tree = jax.tree.flatten(grads)
    return tree.unflatten([marks.mark(leaf, first + i) for i, leaf in enumerate(leaves)])


def times_of(found: list[marks.Mark]) -> list[float]:
    """When the first and the last gradient were ready, and the first and the last sum: medians over devices."""
    devices = {mark.device for mark in found}
    times = []
    for wanted in (lambda number: number < DONE, lambda number: number >= DONE):
        for pick in (min, max):
            each = [pick(m.seconds for m in found if m.device == device and wanted(m.number)) for device in devices]
            times.append(statistics.median(each))
    return times


if __name__ == "__main__":
    main()
