"""`jaxcomm demo`: profile, plan, verify, train and report, with one rank late on purpose."""

from __future__ import annotations

import itertools
import shutil
import statistics
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from jaxcomm import files, plan, planner, profile, simulate
from jaxcomm.cli.common import arguments, options, output, progress
from jaxcomm.cli.common.arguments import Late
from jaxcomm.cli.common.host_devices import use_host_devices
from jaxcomm.errors import JaxcommError, require_extras
from jaxcomm.measure.devices import measure_devices
from jaxcomm.measure.schedules import SIZES
from jaxcomm.plan import Plan
from jaxcomm.profile import Profile
from jaxcomm.report import demo, plots
from jaxcomm.report.plan import timeline
from jaxcomm.report.plan.explanation import entry_for
from jaxcomm.report.tables import seconds_text
from jaxcomm.report.words import spec_text

EXAMPLE = """
    jaxcomm demo
    jaxcomm demo --late rank=5,ms=40 --steps 100 --out my-demo
"""

_TRY_S = 10.0  # rough time limit for trying the plan's candidates
_BLOCK = 5  # steps of one training run per turn
_WARM_UP = 5  # untimed first steps of each training run, which compile the code and touch new memory
_ROUNDS = 5
_LEAST_SIZES = 4  # minimum number of measured sizes
_IMAGES = 1797  # scikit-learn's digits


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("--out", default="jaxcomm-demo", help="folder for the report and the pictures (jaxcomm-demo)")
    parser.add_argument("--devices", type=int, default=8, help="host devices (8)")
    options.late(parser, Late(3, 0.02), "the late rank (rank=3,ms=20)")
    parser.add_argument(
        "--steps", type=arguments.whole(1, 10**6), default=60, help="training steps of each training (60)"
    )
    parser.add_argument(
        "--hidden", type=arguments.whole(1, 65536), default=2048, help="units of the two hidden layers (2048: 16.6 MiB)"
    )
    parser.add_argument("--batch", type=arguments.whole(1, 1000), default=4, help="images per device and step (4)")
    parser.add_argument(
        "--seed",
        type=arguments.whole(0, 2**31 - 1),
        default=0,
        help="seed of the parameters and the order of the images (0)",
    )
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Profiles, plans, proves, trains and reports."""
    start = time.perf_counter()
    if args.late.rank >= args.devices:
        raise JaxcommError(
            f"--late names rank {args.late.rank}; with {args.devices} devices the ranks go to {args.devices - 1}.\n"
            "  Cure: name one of them."
        )
    if args.steps <= _WARM_UP:
        raise JaxcommError(
            f"--steps is {args.steps}; the first {_WARM_UP} only warm up, so more are needed.\n  Cure: --steps 60."
        )
    if args.devices * args.batch > _IMAGES:
        raise JaxcommError(
            f"--batch {args.batch} on {args.devices} devices is more than the {_IMAGES} images of the data set.\n"
            f"  Cure: --batch {_IMAGES // args.devices}, or less."
        )
    require_extras("jaxcomm demo", "flax", "matplotlib", "optax", "ortools", "sklearn")
    out = files.make_folder(args.out)
    files.check_writable(out / "report.md")
    use_host_devices(args.devices)
    from jaxcomm.cli import plan_try
    from jaxcomm.cli.common import digits
    from jaxcomm.collectives import active_plan

    active_plan.set_trial(False)  # without trials: the demo itself compares training runs with and without the plan
    with progress.Bar(1.0, "1/4 profiling") as bar:
        measured = measure_devices(
            args.devices,
            _sizes(args.hidden),
            50,
            late={args.late.rank: args.late.seconds},
            progress=lambda share: bar.update(share - bar.n),
        )
        profile.save(measured, out / "profile.json")
    with progress.clock("2/4 planning, trying and proving"):
        made = planner.plan(measured)
        made = plan_try.tried(made, measured, _TRY_S, lambda: None, digits.gradient_bytes(args.hidden)).plan
        proof = plan.verify(made)
        plan.save(made, out / "plan.json")
    trained = _train(args, made)
    with progress.clock("4/4 measuring the collective alone"):
        report = _report(args, measured, made, trained) | {"proof": str(proof)}
    lines = {
        demo.TRAININGS[name]: ([*itertools.accumulate(side.seconds[_WARM_UP:])], side.losses[_WARM_UP:])
        for name, side in trained.items()
    }
    panel = plots.Panel(
        f"{args.devices} devices, rank {args.late.rank} late by {seconds_text(args.late.seconds)}", lines
    )
    files.write(
        out / "loss.png", plots.png([[panel]], x=f"seconds of training after {_WARM_UP} steps", y="training loss")
    )
    schedule = made.schedule_for(report["gradient_bytes"])
    assert schedule is not None  # if no dtype is given, a plan has a schedule for every size
    files.write(out / "timeline.svg", timeline.svg(schedule))
    report["seconds"] = time.perf_counter() - start
    output.write_json(out / "report.json", "demo", report)
    files.write(out / "report.md", demo.markdown(report))
    if args.json:
        output.print_json("demo", report)
    else:
        # `make demo` runs a `jaxcomm` that may not be on the user's PATH, so the screen shows its path.
        called = sys.argv[0] if Path(sys.argv[0]).name == "jaxcomm" and not shutil.which("jaxcomm") else "jaxcomm"
        print(demo.screen(report, args.out, called))
    return 0


def _sizes(hidden: int) -> tuple[int, ...]:
    """The sizes to measure: all sizes up to the first one that is at least the gradient's bytes.

    Returns at least `_LEAST_SIZES` sizes, because the fit of α and β needs this number.
    """
    from jaxcomm.cli.common import digits

    nbytes = digits.gradient_bytes(hidden)
    return SIZES[: max(_LEAST_SIZES, 1 + sum(size < nbytes for size in SIZES))]


def _train(args: Namespace, made: Plan) -> dict[str, Any]:
    """Advances the training runs in turns of `_BLOCK` steps, after a reset of the core's statistics."""
    import jax
    import jax.numpy as jnp

    from jaxcomm import collectives, ffi
    from jaxcomm.cli.common import digits, spmd

    def delay(gradient: Any) -> Any:
        late = jax.lax.axis_index(spmd.AXIS) == args.late.rank
        return ffi.delay(gradient, jnp.where(late, args.late.seconds, 0.0))

    def planned(tree: Any, axis: str) -> Any:
        return collectives.pmean(tree, axis, plan=made)

    shape = {"devices": args.devices, "hidden": args.hidden, "batch": args.batch, "seed": args.seed}
    sides = {
        "lax": digits.Training(jax.lax.pmean, delay, **shape),
        "direct": digits.Training(collectives.pmean, delay, **shape),
        "jaxcomm": digits.Training(planned, delay, **shape),
    }
    ffi.reset_stats()
    with progress.Bar(len(sides) * args.steps, "3/4 training, three times") as bar:
        for first in range(0, args.steps, _BLOCK):
            for side in sides.values():
                for _ in range(first, min(first + _BLOCK, args.steps)):
                    side.step()
                    bar.update()
    return sides


def predicted_seconds(measured: Profile, made: Plan, of: Plan, nbytes: int) -> float:
    """Predicts a call's mean seconds after the late rank's arrival, under the plan `of` and on the links of `made`."""
    schedule = of.schedule_for(nbytes)
    assert measured.timed_schedules and schedule
    costs = simulate.timed_costs(measured.timed_schedules, measured.ranks, made.links, 1)
    before, after = costs.phases(schedule, nbytes)
    return float(simulate.Delays(profile.find_straggler(measured).delays).exposed(before)) + after


def _report(args: Namespace, measured: Profile, made: Plan, trained: dict[str, Any]) -> dict[str, Any]:
    """The content of report.json. A gain is 1 - plan's time / ring's time; times count from the late rank's arrival."""
    import jax
    import numpy as np

    from jaxcomm import ffi
    from jaxcomm.cli import bench_late
    from jaxcomm.cli.common import digits

    [trained_site] = [site for site in ffi.sites() if site["calls"] and site["plan"] == made.hash[:8]]
    nbytes = digits.gradient_bytes(args.hidden)
    late = profile.find_straggler(measured)
    plans = {name: bench_late.single(name, args.devices, args.late) for name in ("ring", "direct")} | {"plan": made}
    predicted = {name: predicted_seconds(measured, made, each, nbytes) for name, each in plans.items()}
    rows = bench_late.measure(plans, args.late, nbytes, _ROUNDS, lambda: None)["schedules"]
    alone = {row["schedule"]: row["after_arrival_s"] for row in rows}
    step = {name: statistics.median(side.seconds[_WARM_UP:]) for name, side in trained.items()}
    differences = jax.tree.map(
        lambda *values: float(np.ptp(np.stack([np.asarray(value) for value in values]), axis=0).max()),
        *(side.params for side in trained.values()),
    )
    return {
        "devices": args.devices,
        "gradient_bytes": nbytes,
        "straggler": {
            "rank": late.rank,
            "is_late": late.is_late,
            "late_steps": late.late_steps,
            "steps": late.steps,
            "median_ms": 1e3 * late.median_s,
        },
        "schedule": spec_text(entry_for(made, nbytes).schedule),
        "steps": args.steps,
        "timed_steps": args.steps - _WARM_UP,
        "last_in_training": trained_site["late"],
        "final_loss_lax": trained["lax"].losses[-1],
        "final_loss_direct": trained["direct"].losses[-1],
        "final_loss_jaxcomm": trained["jaxcomm"].losses[-1],
        "max_abs_param_diff": max(jax.tree.leaves(differences)),
        "step_ms_lax": 1e3 * step["lax"],
        "step_ms_direct": 1e3 * step["direct"],
        "step_ms_jaxcomm": 1e3 * step["jaxcomm"],
        "predicted_gain": 1 - predicted["plan"] / predicted["ring"],
        "measured_gain": 1 - alone["plan"] / alone["ring"],
        "collective_ms": {
            "predicted": {name: 1e3 * seconds for name, seconds in predicted.items()},
            "measured": {name: 1e3 * seconds for name, seconds in alone.items()},
        },
        "plan_hash": made.hash,
    }
