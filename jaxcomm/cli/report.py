"""`jaxcomm report`: shows a saved run (as words, pictures, a trace or scalars), or the dumps of a failed call."""

from __future__ import annotations

import datetime
import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from jaxcomm import files, plan
from jaxcomm.cli.common import options, output, progress
from jaxcomm.cli.exit_codes import OK
from jaxcomm.errors import JaxcommError
from jaxcomm.plan import Plan
from jaxcomm.plan.files import decode
from jaxcomm.profile import dump_file, run_file
from jaxcomm.profile.run_file import SavedRun
from jaxcomm.report.dumps import page as dumps_page
from jaxcomm.report.dumps import words as dumps_words
from jaxcomm.report.dumps.incident import incident
from jaxcomm.report.run import page as run_page
from jaxcomm.report.run import picture as run_picture
from jaxcomm.report.run import tensorboard
from jaxcomm.report.run import trace as run_trace
from jaxcomm.report.run import words as run_words

EXAMPLE = """
    jaxcomm report run.json                            # a run that called jaxcomm.stats().save("run.json")
    jaxcomm report run.json --html run.html --svg run.svg
    jaxcomm report run.json --trace run_trace.json     # open it in ui.perfetto.dev
    jaxcomm report run.json --tensorboard logs         # then: tensorboard --logdir logs
    jaxcomm report auto_run.json --save-plan plan.json     # the plan of plan="auto", for the next run to begin with
    jaxcomm report dumps/*.json                        # who was where when a call failed (JAXCOMM_DUMP=dumps)
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="a run's saved jaxcomm.stats(), which the run may rewrite as it goes on; or dumps of a job's processes",
    )
    parser.add_argument("--svg", metavar="FILE", help="also draw rails, late ranks and plans over time")
    parser.add_argument("--html", metavar="FILE", help="also write a page with the picture and the tables")
    parser.add_argument("--trace", metavar="FILE", help="also write a trace, for ui.perfetto.dev")
    parser.add_argument("--tensorboard", metavar="FOLDER", help="also write scalars over time, for TensorBoard")
    parser.add_argument("--save-plan", metavar="FILE", help='also write the plan of plan="auto" that was in force')
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Reads the files, writes the requested output files, and prints the summary."""
    if dump_file.is_dump(args.files[0]):
        return _dumps(args)
    if len(args.files) > 1:
        raise JaxcommError("a report has one run, or several dumps.\n  Cure: give one file of a run, or dumps only.")
    path = args.files[0]
    with progress.clock(f"reading {path}"):
        found = run_file.load(path)
    files.check_writable(args.svg, args.html, args.trace, args.save_plan)
    made = _plan_in_force(found, path) if args.save_plan else None
    with progress.clock("drawing"):
        if args.svg:
            files.write(args.svg, run_picture.svg(found))
        if args.html:
            files.write(args.html, run_page.html(found))
        if args.trace:
            files.write(args.trace, run_trace.of_run(found))
    if args.tensorboard:
        began = found.written.timestamp() - found.at_s if found.written else 0.0
        name = f"events.out.tfevents.{round(began)}.{Path(path).name}"  # a later save of the run replaces the file
        files.write(files.make_folder(args.tensorboard) / name, tensorboard.events(found, began))
    if made:
        plan.save(made, args.save_plan)
    if args.json:
        output.print_json("run", {"run": found.model_dump(mode="json")})
        return OK
    print(run_words.in_force(found, datetime.datetime.now(datetime.UTC)), run_words.summary(found), sep="\n\n")
    for name in ("svg", "html", "trace", "tensorboard"):
        if written := getattr(args, name):
            print(f"\n{name}: {written}")
    if made:
        print(f'\nplan: {args.save_plan}; next: jaxcomm.init(plan="{args.save_plan}")')
    return OK


def _dumps(args: Namespace) -> int:
    for name in ("svg", "trace", "tensorboard", "save_plan"):
        if getattr(args, name):
            option = name.replace("_", "-")
            raise JaxcommError(f"--{option} is for a saved run, not for dumps.\n  Cure: leave out --{option}.")
    files.check_writable(args.html)
    found = incident([dump_file.load(path) for path in args.files])
    if args.html:
        files.write(args.html, dumps_page.html(found))
    if args.json:
        culprit = found.culprit._asdict() if found.culprit else None
        places = [place._asdict() for place in found.places]
        dumps = [dump.model_dump(mode="json") for dump in found.dumps]
        output.print_json("dumps", {"culprit": culprit, "ranks": places, "dumps": dumps})
        return OK
    print(dumps_words.summary(found))
    if args.html:
        print(f"\nhtml: {args.html}")
    return OK


def _plan_in_force(found: SavedRun, path: str) -> Plan:
    made = next((each for each in found.plans if each.file), None)
    if made is None:
        raise JaxcommError(f'{path}: no plan made by plan="auto" was in force.\n  Cure: leave out --save-plan.')
    return decode(json.dumps(made.file).encode(), f"{path}: the plan {made.plan}")
