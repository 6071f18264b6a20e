"""`jaxcomm profile drop-bound`: finds the share of gradients that training can drop without needing more rounds."""

from __future__ import annotations

import hashlib
import inspect
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxcomm import files, profile
from jaxcomm.cli.common import arguments, functions, options, output, progress
from jaxcomm.cli.common.host_devices import use_host_devices
from jaxcomm.errors import JaxcommError, ProfileError, require_extras
from jaxcomm.measure.training import Train, TrainingKey, Trainings, rounds_to_target
from jaxcomm.planner.drops import gradients
from jaxcomm.profile import Layer, Profile, Trials
from jaxcomm.profile.drop_study import search
from jaxcomm.report.plan import drop_study as report

if TYPE_CHECKING:
    from jaxcomm.train import Drop

EXAMPLE = """
    jaxcomm profile drop-bound recipes/images.py:train --target 0.95 --out profile.json
    jaxcomm profile drop-bound recipes/images.py:train --target 0.95 --repeats 20    # adds ten repeats
    jaxcomm profile drop-bound mine.text:train --layers mine.text:layers --target 2.1 --falling --shares 5%,10%

    train(drop, seed) trains with gradients averaged by `jaxcomm.pmean(..., drop=drop)` or `train.bounded_drop`
    (drop None: without drops), takes all other randomness from `seed`, and yields the validation metric after each
    round. layers() returns the result of `jaxcomm.train.layers`; a profile with layers or buckets does not need it.
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("train", help="the training: path/file.py:function or module:function")
    parser.add_argument("--target", type=float, required=True, help="the metric to reach")
    parser.add_argument("--falling", action="store_true", help="the metric falls to the target, as a loss does")
    parser.add_argument("--out", default="profile.json", help="the profile to complete (profile.json)")
    parser.add_argument(
        "--layers", metavar="FUNCTION", help="the model's layers (those of the profile, or its buckets)"
    )
    parser.add_argument(
        "--shares",
        type=arguments.fractions,
        default=[0.01, 0.05, 0.1, 0.2, 0.3],
        help="shares to drop, up to the first that costs rounds (1%%,5%%,10%%,20%%,30%%)",
    )
    parser.add_argument("--repeats", type=int, default=10, help="trainings of each share, with seeds 0, 1, … (10)")
    parser.add_argument("--max-rounds", type=int, default=500, help="rounds in which the target must be reached (500)")
    parser.add_argument(
        "--margin", type=arguments.fraction, default=0.05, metavar="SHARE", help="tolerated increase in rounds (5%%)"
    )
    parser.add_argument("--devices", type=int, help="host devices to start JAX with (set by training or environment)")
    parser.add_argument("--svg", metavar="FILE", help="also draw the rounds to the target over the share")
    parser.add_argument("--dry-run", action="store_true", help="say what would be trained, train nothing")
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Trains, writes the drop bound into the profile, and prints the study."""
    _check(args)
    before = profile.load(args.out)
    if args.devices is not None:
        use_host_devices(args.devices)
    train: Train = functions.function(args.train)
    layers = _layers(args, before)
    trainings = Trainings.load(f"{args.out}.trainings.json", _setting(args, train))
    if args.dry_run:
        return _dry_run(args, trainings)
    require_extras("jaxcomm profile drop-bound", "scipy", *(["matplotlib"] if args.svg else []))
    files.check_writable(args.out, trainings.path, args.svg)
    with progress.Bar((1 + len(args.shares)) * args.repeats, "training") as bar:
        baseline, found = search(_runner(args, train, trainings, bar), args.shares, args.repeats, args.margin)
    study = Trials(
        train=args.train,
        target=args.target,
        falling=args.falling,
        max_rounds=args.max_rounds,
        margin=args.margin,
        baseline=baseline,
        trials=found,
    )
    profile.save(_completed(before, layers, study, args.out), args.out)
    if args.svg:
        files.write(args.svg, report.svg(study))
    if args.json:
        output.print_json("drop-study", report.document(study))
    else:
        print(report.summary(study))
        print(f"\nProfile: {args.out}; next: jaxcomm plan {args.out}")
        print(f"Trainings: {trainings.path}; runs with more --repeats or --shares reuse them")
    return 0


def _check(args: Namespace) -> None:
    for name, value, least in (("repeats", args.repeats, 2), ("max-rounds", args.max_rounds, 1)):
        if value < least:
            raise JaxcommError(f"--{name} is {value}; it must be at least {least}.\n  Cure: leave it out.")
    if not args.margin:
        raise JaxcommError(
            "--margin is 0, which no number of trainings proves; it must be above 0.\n  Cure: leave it out."
        )
    if not abs(args.target) < float("inf"):
        raise JaxcommError(f"--target is {args.target}; it must be a number.\n  Cure: name the metric to reach.")


def _layers(args: Namespace, before: Profile) -> Sequence[Layer]:
    """The layers over which a plan will distribute the dropped share."""
    if args.layers:
        found = functions.function(args.layers)()
        if not (isinstance(found, list) and found and all(isinstance(layer, Layer) for layer in found)):
            problem, cure = f"returned {files.short(found)}, not layers", "return the result of `jaxcomm.train.layers`"
            raise ProfileError(files.mistake(args.layers, problem, cure))
        return found
    if before.tolerance:
        return before.tolerance.layers
    if not before.buckets:
        problem = "has neither tolerance.layers nor buckets, so no plan could use the bound"
        raise ProfileError(files.mistake(args.out, problem, "name the model's layers with --layers"))
    return gradients(before)


def _setting(args: Namespace, train: Train) -> TrainingKey:
    source = inspect.getsourcefile(inspect.unwrap(train))
    digest = hashlib.sha256(Path(source).read_bytes()).hexdigest() if source else ""
    return TrainingKey(
        train=args.train, source=digest, target=args.target, falling=args.falling, max_rounds=args.max_rounds
    )


def _runner(args: Namespace, train: Train, trainings: Trainings, bar: Any) -> Callable[[float, int], int | None]:
    """Returns a function that gives the number of rounds to the target. It trains only if no number is recorded."""
    from jaxcomm.train import Drop

    def rounds(share: float, seed: int) -> int | None:
        drop: Drop | None = Drop(share) if share else None
        name = f"{f'dropping {share:.3g}' if share else 'without drops'}, {seed + 1} of {args.repeats}"

        def show(count: int, metric: float) -> None:
            bar.set_description(f"{name}: round {count}, {metric:.4g}")

        found = trainings.rounds(share, seed, lambda: rounds_to_target(train, drop, seed, trainings.setting, show))
        bar.update()
        return found

    return rounds


def _dry_run(args: Namespace, trainings: Trainings) -> int:
    shares = [0.0, *args.shares]
    kept = sum((share, seed) in trainings for share in shares for seed in range(args.repeats))
    if args.json:
        output.print_json(
            "drop-study-dry-run",
            {**trainings.setting.model_dump(), "shares": args.shares, "repeats": args.repeats, "kept": kept},
        )
        return 0
    lost = ", ".join(f"{share:.3g}" for share in args.shares)
    print(
        f"Would train {args.train} {args.repeats} times without drops, to {args.target:g} in at most {args.max_rounds}"
    )
    print(f"rounds; then as often with each share {lost} of every gradient dropped, up to the first")
    print("share that is not tolerated.")
    print(f"{kept} of {len(shares) * args.repeats} trainings are done. Then complete {args.out}.")
    return 0


def _completed(before: Profile, layers: Sequence[Layer], study: Trials, where: str) -> Profile:
    document = before.model_dump()
    bears = {"layers": [layer.model_dump() for layer in layers], "bound": study.bound, "trials": study.model_dump()}
    document["tolerance"] = (document["tolerance"] or {}) | bears
    return profile.validate(document, where)
