"""Training time to a target loss, by all-reduces and by a plan's groups, over busy uplinks between racks.

    FILE=benchmarks/busy_uplinks.toml
    jaxcomm testbed run $FILE -- jaxcomm profile --seconds 40 --sizes 64KiB,1MiB --out profile.json
    jaxcomm plan profile.json --model-bytes 1MiB --out plan.json
    jaxcomm testbed run $FILE -- python benchmarks/group_training.py plan.json

Each process is a worker; a perceptron learns handwritten digits. Each seed trains in all ways and begins with another
one. Some ways average gradients over all workers by jaxcomm.pmean, with the plan's schedules or without a plan. The
others average parameters over the plan's groups by jaxcomm.train.divide_and_shuffle. Both use one call per step, or
buckets of --bucket_bytes that overlap with the backward pass. Times are those of the steps on process 0 until the loss
of the workers' mean variables on test data is at most --target, without the measurements. Process 0 prints the seconds
by seed, and their ratio to the first way's with its 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))

from common import devices

devices.prepare(workers=1)

import jax
import jax.numpy as jnp
import optax
import time_to_loss
import turns

import jaxcomm
from common import synchronisation
from common.digits import digits
from common.synchronisation import Average, Synchronisation
from common.task import Task
from common.training import Training
from jaxcomm import train
from jaxcomm.collectives.leaves import runs_of

UNPLANNED = "all-reduce without a plan"
WAYS = (UNPLANNED, "all-reduce", "all-reduce in buckets", "groups", "groups in buckets")
DEFAULT = (UNPLANNED, "all-reduce", "groups", "groups in buckets")
RATE = 0.01  # a fifth of the recipe's, whose loss fluctuates too much to say when it reaches the target


def main() -> None:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", help="plan.json with groups")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=DEFAULT, help="ratios are to the first one")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each way; default 5")
    parser.add_argument("--target", type=float, default=0.15, help="held-out loss; default 0.15")
    parser.add_argument("--units", type=int, default=480, help="of each of two layers; default 480: 1 MiB")
    parser.add_argument("--bucket_bytes", type=int, default=2**17, help="default 128 KiB")
    parser.add_argument("--every", type=int, default=10, help="steps between measurements; default 10")
    parser.add_argument("--steps", type=int, default=600, help="after which a training gives up; default 600")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", help="also write the seconds of each seed to this file")
    args = parser.parse_args()
    mesh, task = devices.mesh(), by_loss(digits(args.units))
    jaxcomm.init(mesh, plan=args.plan)
    trainings = {way: Training(task, synchronised(way, args, mesh.size), mesh) for way in args.ways}
    found: dict[str, list[time_to_loss.Reached]] = {way: [] for way in args.ways}
    for way in args.ways:  # compiles, and runs the trials of plans
        with planned(way):
            time_to_loss.reach(trainings[way], args.seeds, 0.0, args.every, 6 * args.every)
    for seed in range(args.seeds):
        for way in (*args.ways[seed % len(args.ways) :], *args.ways[: seed % len(args.ways)]):
            with planned(way):
                reached = time_to_loss.reach(trainings[way], seed, args.target, args.every, args.steps)
            found[way].append(reached)
            if devices.is_first():
                print(f"seed {seed}, {way}: {reached}", file=sys.stderr, flush=True)
    if devices.is_first():
        turns.write(args.out, [time_to_loss.row(found)])
    if args.json:
        devices.say(json.dumps({"target": args.target, "ways": time_to_loss.summary(found)}))
    else:
        devices.say(time_to_loss.report(found))


def by_loss(task: Task) -> Task:
    """The task with our learning rate, scored by its loss."""

    def score(params: Any, state: Any, part: Any) -> tuple[jax.Array, jax.Array]:
        examples = jnp.float32(len(jax.tree.leaves(part)[0]))
        return task.loss(params, state, part)[0] * examples, examples

    return replace(task, score=score, metric="loss", optimizer=optax.sgd(RATE, momentum=0.9))


def planned(way: str) -> AbstractContextManager[object]:
    """The context in which a way's calls run: with the job's plan, or without a plan."""
    return jaxcomm.use_plan(None) if way == UNPLANNED else nullcontext()


def synchronised(way: str, args: argparse.Namespace, workers: int) -> Synchronisation:
    """The synchronisation of one of `WAYS`."""
    nbytes = args.bucket_bytes if way.endswith("in buckets") else None
    if way.startswith("groups"):
        average = train.divide_and_shuffle(args.plan, devices.AXIS, bucket_bytes=nbytes)
        how = Average(lambda _: (), lambda variables, state, step: (average(variables, step), state))
        return Synchronisation(optax.identity(), how)
    if nbytes is None:
        return synchronisation.by_name("jaxcomm", workers)
    return Synchronisation(optax.stateless(partial(pmean_in_buckets, nbytes=nbytes)))


def pmean_in_buckets(gradients: Any, params: Any, nbytes: int) -> Any:
    """The mean of gradients over all workers, by a call for each bucket."""
    del params
    leaves, tree = jax.tree.flatten(gradients)
    for run in runs_of(leaves, nbytes):
        leaves[run] = jaxcomm.pmean(leaves[run], devices.AXIS)
    return tree.unflatten(leaves)


if __name__ == "__main__":
    main()
