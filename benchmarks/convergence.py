"""Compares how trainings converge when workers synchronise less: by divide and shuffle, bounded drops, and others.

    python benchmarks/convergence.py --out benchmarks/convergence

Eight workers train the recipes' tasks for the same number of steps. With the same seed all schemes start from the same
parameters and see the same batches. The learning rate is chosen for BSP on separate seeds, and used for all schemes.
Each finished run becomes a line of results.jsonl, and a restarted command does only the missing runs. At the end it
writes table.md and a picture per task.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes"))

from common import devices

devices.prepare()

import convergence_report as report
import jax
import jax.numpy as jnp
import optax
from lossy_means import lossy_mean

import images
import jaxcomm
import language
from common import synchronisation
from common.synchronisation import Average, Synchronisation
from common.task import Task
from common.training import Training
from jaxcomm.train import Drop, bounded_drop, divide_and_shuffle

SEEDS = 5
TUNING_SEEDS = [1000, 1001]
SEGMENT = 256  # bytes; tensors have some tens of KiB, and 1 % of one must be at least a segment
EXACT = 150  # steps with exact gradients before divide and shuffle, in the scheme "exact-first"
EVERY = 8  # steps between averages, in schemes that do not average in every step

# By scheme: its synchronisation, the share that gradients may leave out, and the policy that chooses it.
SCHEMES: dict[str, tuple[str, float, str]] = {
    "bsp": ("bsp", 0, ""),
    "ds-sync": ("ds-sync", 0, ""),
    "every-step": ("every-step", 0, ""),
    "mlt-1": ("mlt", 0.01, "agreed"),
    "mlt-10": ("mlt", 0.1, "agreed"),
    "mlt-20": ("mlt", 0.2, "agreed"),
    "mlt-30": ("mlt", 0.3, "agreed"),
    "mlt-feedback-20": ("mlt-feedback", 0.2, "agreed"),
    "random-1": ("mlt", 0.01, "random"),
    "random-10": ("mlt", 0.1, "random"),
    "random-20": ("mlt", 0.2, "random"),
    "random-30": ("mlt", 0.3, "random"),
    "zeros-1": ("zeros", 0.01, "random"),
    "zeros-10": ("zeros", 0.1, "random"),
    "zeros-20": ("zeros", 0.2, "random"),
    "zeros-30": ("zeros", 0.3, "random"),
    "alike-20": ("alike", 0.2, "random"),
    "mlt-local-20": ("mlt", 0.2, "local"),
    "local-sgd": ("local-sgd", 0, ""),
    "outer-steps": ("outer-steps", 0, ""),
    "gossip": ("gossip", 0, ""),
    "ds-gradients": ("ds-gradients", 0, ""),
    "ds-moments": ("ds-moments", 0, ""),
    "exact-first": ("exact-first", 0, ""),
    "racks-4": ("racks-4", 0, ""),
    "racks-8": ("racks-8", 0, ""),
}
# `DIGITS` leaves out error feedback, which would give each worker its own variables and BatchNorm statistics.
BY_ADAM = ["ds-gradients", "ds-moments", "exact-first", "racks-4", "racks-8"]  # for Adam, with which DS-Sync lags
DIGITS = [name for name in SCHEMES if name not in ("mlt-feedback-20", *BY_ADAM)]
LANGUAGE = [name for name in SCHEMES if name not in ("mlt-local-20", "local-sgd", "outer-steps", "gossip", *BY_ADAM)]


class Study(NamedTuple):
    """A task: its constructor, number of steps, steps between measurements, BSP's rates, SWA's decay, and schemes."""

    make: Callable[[str | None, float], Task]
    steps: int
    every: int
    rates: Sequence[float]
    swa: float
    schemes: Sequence[str]


def language_by_sgd(axis: str | None, rate: float) -> Task:
    """The language model by SGD with momentum. For SGD both papers prove convergence."""
    return dataclasses.replace(language.python_help(axis), optimizer=optax.sgd(rate, momentum=0.9))


STUDIES = {
    "digits": Study(images.digits, 24, 2, (0.01, 0.02, 0.05, 0.1, 0.2), 0.8, DIGITS),
    "language-sgd": Study(language_by_sgd, 200, 20, (0.05, 0.1, 0.2), 0.97, LANGUAGE),
    "language-adam": Study(language.python_help, 200, 20, (1.5e-3, 3e-3, 6e-3, 1.2e-2), 0.97, LANGUAGE + BY_ADAM),
}


class Run(NamedTuple):
    """One requested training, and the key of its result."""

    task: str
    scheme: str
    seed: int
    rate: float
    steps: int


def main() -> None:
    """Does the runs that are missing, then writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("convergence"))
    parser.add_argument("--tasks", nargs="+", choices=STUDIES, default=[*STUDIES])
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=[*SCHEMES], help="BSP is always among them")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--steps", type=int, help="instead of each task's own number")
    parser.add_argument(
        "--rates", nargs="+", type=float, help="to choose the learning rate from, instead of the task's"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    results = Results(args.out / "results.jsonl")
    asked: list[Run] = []
    for task in args.tasks:
        schemes = [name for name in STUDIES[task].schemes if name == "bsp" or name in args.schemes]
        steps = args.steps or STUDIES[task].steps
        rates = args.rates or STUDIES[task].rates
        tuning = [Run(task, "bsp", seed, rate, steps) for rate in rates for seed in TUNING_SEEDS]
        do(tuning, results, f"{task}, learning rate")
        rate = report.best_rate([results.found[run] for run in tuning])
        # Seeds outermost, so that an interrupted study has the same number of runs of every scheme.
        study = [Run(task, scheme, seed, rate, steps) for seed in range(args.seeds) for scheme in schemes]
        do(study, results, task)
        asked += [*tuning, *study]
    report.write([results.found[run] for run in asked], args.out, TUNING_SEEDS)


class Results:
    """The finished runs in a file of JSON lines; `found` maps each `Run` to its record."""

    def __init__(self, path: Path) -> None:
        """Reads the file. Removes a last line that an interruption cut short."""
        self._path = path
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith("\n")]
        if whole != lines:
            path.write_text("".join(whole))
        records = map(json.loads, whole)
        self.found = {Run(*(record[name] for name in Run._fields)): record for record in records}

    def add(self, run: Run, curves: dict[str, Any]) -> None:
        """Appends one run."""
        record = run._asdict() | curves
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        self.found[run] = record


def do(runs: Sequence[Run], results: Results, what: str) -> None:
    """Does those of a task's runs that are missing, and prints the progress."""
    missing = [run for run in runs if run not in results.found]
    print(f"{what}: {len(runs)} runs, {len(runs) - len(missing)} of them done before", flush=True)
    start = time.perf_counter()
    for done, run in enumerate(missing, 1):
        curves = train(prepare(run.task, run.scheme, run.rate), run)
        results.add(run, curves)
        minutes = (len(missing) - done) * (time.perf_counter() - start) / done / 60
        place, ends = f"{done}/{len(missing)}", f"{curves['metric']} {curves[curves['metric']][-1]:.4f}"
        took = f"{curves['seconds']:.1f} s; {minutes:.1f} min left"
        print(f"  {place}  {run.scheme}, seed {run.seed}, rate {run.rate:g}: {ends}, {took}", flush=True)


@functools.cache
def prepare(task: str, scheme: str, rate: float) -> Training:
    """A training that is compiled once for all seeds."""
    mesh = devices.mesh()
    how = synchronise(scheme, mesh.size)
    study = STUDIES[task]
    made = study.make(devices.AXIS if how.average is None else None, rate)
    if scheme == "ds-moments":
        made = dataclasses.replace(made, optimizer=with_moments(made.optimizer, group_mean(mesh.size)))
    return Training(made, how, mesh, swa=study.swa)


def synchronise(scheme: str, workers: int) -> Synchronisation:
    """A scheme's synchronisation: one of the recipes', or one that only this study has."""
    name, share, policy = SCHEMES[scheme]
    if policy in ("local", "random") and name == "mlt":
        return Synchronisation(lossy_mean(devices.AXIS, Drop(share, segment_bytes=SEGMENT), policy))
    drop = Drop(share, segment_bytes=SEGMENT) if policy == "agreed" else None
    match name:
        case "mlt-feedback":
            own = Average(lambda _: (), lambda variables, state, step: (variables, state))  # the state differs by rank
            return Synchronisation(bounded_drop(devices.AXIS, drop, error_feedback=True), own)
        case "every-step":
            return synchronisation.by_name("local-sgd", workers, every=1)
        case "ds-gradients":
            return dataclasses.replace(
                synchronisation.by_name("ds-sync", workers), gradients=by_step(group_mean(workers))
            )
        case "ds-moments":
            return synchronisation.by_name("ds-sync", workers)
        case "exact-first":

            def until_then(gradients: Any, step: jax.Array) -> Any:
                return jax.lax.cond(step < EXACT, lambda g: jaxcomm.pmean(g, devices.AXIS), lambda g: g, gradients)

            return dataclasses.replace(synchronisation.by_name("ds-sync", workers), gradients=by_step(until_then))
        case "racks-4" | "racks-8":
            return synchronisation.by_name("racks", workers, every=int(name.removeprefix("racks-")))
        case "zeros" | "alike":
            return Synchronisation(zero_filled(share, alike=name == "alike"))
    return synchronisation.by_name(name, workers, drop=drop, every=EVERY)


def group_mean(workers: int) -> Callable[[Any, jax.Array], Any]:
    """The mean over DS-Sync's groups of a step."""
    return divide_and_shuffle(synchronisation.two_racks(workers), devices.AXIS)


def by_step(mean: Callable[[Any, jax.Array], Any]) -> optax.GradientTransformation:
    """Averages gradients by `mean`, which gets the number of the step."""
    return optax.GradientTransformation(
        lambda _: jnp.uint32(0), lambda updates, step, params=None: (mean(updates, step), step + 1)
    )


def with_moments(optimizer: optax.GradientTransformation, mean: Callable[[Any, jax.Array], Any]) -> Any:
    """An optimizer whose state is averaged after each step, too."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        step, own = state
        updates, own = optimizer.update(updates, own, params)
        return updates, (step + 1, mean(own, step))

    return optax.GradientTransformation(lambda params: (jnp.uint32(0), optimizer.init(params)), update)


def zero_filled(share: float, *, alike: bool) -> optax.GradientTransformation:
    """The mean of gradients with random segments set to zero: each rank's own, or the same on all ranks (`alike`)."""

    def update(updates: Any, step: jax.Array, params: Any = None) -> tuple[Any, jax.Array]:
        del params
        key = jax.random.fold_in(jax.random.key(0), step)
        if not alike:
            key = jax.random.fold_in(key, jax.lax.axis_index(devices.AXIS))
        leaves, tree = jax.tree.flatten(updates)
        keys = jax.random.split(key, len(leaves))
        kept = [lose(leaf, key) for leaf, key in zip(leaves, keys, strict=True)]
        return jaxcomm.pmean(tree.unflatten(kept), devices.AXIS), step + 1

    def lose(x: jax.Array, key: jax.Array) -> jax.Array:
        elements = SEGMENT // x.dtype.itemsize
        kept = jax.random.bernoulli(key, 1 - share, (-(-x.size // elements),))
        return jnp.where(jnp.repeat(kept, elements)[: x.size].reshape(x.shape), x, 0)

    return optax.GradientTransformation(lambda _: jnp.uint32(0), update)


def train(training: Training, run: Run) -> dict[str, Any]:
    """A run's metrics at every measured step. The seconds of the first seed include compilation."""
    every = min(STUDIES[run.task].every, run.steps)
    start = time.perf_counter()
    state = training.init(run.seed)
    curves: dict[str, list[float]] = {}
    measured = [*range(every, run.steps, every), run.steps]
    for before, step in pairwise([0, *measured]):
        state, losses = training.steps(state, step - before)
        for name, value in ({"loss": float(losses.mean())} | training.score(state)).items():
            curves.setdefault(name, []).append(round(value, 6))
    jax.block_until_ready(state)
    seconds = round(time.perf_counter() - start, 2)
    return {"metric": training.metric, "measured": measured, **curves, "seconds": seconds}


if __name__ == "__main__":
    main()
