"""`jaxcomm explain`: explains a plan in words and as a picture, or the trials of a run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from jaxcomm import files, plan
from jaxcomm.cli.common import options, output, progress
from jaxcomm.errors import JaxcommError, PlanError
from jaxcomm.profile import run_file
from jaxcomm.profile.files import read_bytes
from jaxcomm.profile.run_file import SavedRun
from jaxcomm.profile.run_statistics import sniff as is_run
from jaxcomm.report import trace
from jaxcomm.report.plan import considered, explanation, timeline
from jaxcomm.report.plan.step import gantt
from jaxcomm.report.run import trials
from jaxcomm.simulate import link_of

EXAMPLE = """
    jaxcomm explain plan.json
    jaxcomm explain plan.json --svg timeline.svg --size 16MiB
    jaxcomm explain plan.json --trace rounds.json      # open it in ui.perfetto.dev
    jaxcomm explain plan.json --step-svg step.svg --explain-json considered.json
    jaxcomm explain run.json                           # the result of each call site's trial of its plan
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("plan", help="a plan file, or a run's saved jaxcomm.stats()")
    parser.add_argument("--svg", metavar="FILE", help="also draw the rounds of one schedule of the plan, by rank")
    parser.add_argument("--trace", metavar="FILE", help="also write these rounds as a trace, for ui.perfetto.dev")
    options.size(parser, "draw the schedule of this size (the one that saves most)")
    parser.add_argument(
        "--step-svg", metavar="FILE", help="also draw when the network, or each rail, works on each bucket"
    )
    options.considered(parser)
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Prints the explanation, and writes the requested pictures and files."""
    try:
        with progress.clock(f"reading and proving {args.plan}"):
            loaded = plan.load(args.plan)
    except PlanError as error:
        try:
            data = read_bytes(args.plan)
        except JaxcommError:
            raise error from None
        if not is_run(data):
            raise
        return _explain_run(args, run_file.decode(data, args.plan))
    files.check_writable(args.svg, args.trace, args.step_svg, args.explain_json)
    entry, schedule = explanation.headline(loaded)
    if args.size:
        found = loaded.schedule_for(args.size)
        assert found is not None  # if no dtype is given, a plan has a schedule for every size
        schedule = found
    if args.svg:
        files.write(args.svg, timeline.svg(schedule))
    if args.trace:
        nbytes = args.size or entry.predicted.reference_bytes
        files.write(args.trace, trace.of_schedule(schedule, nbytes, *link_of(schedule, nbytes, loaded.links)))
    if args.step_svg:
        if loaded.step is None:
            raise JaxcommError(
                f"{args.plan}: the plan has no step to draw, as its profile has no gradient buckets.\n"
                "  Cure: plan from a profile with `buckets`."
            )
        files.write(args.step_svg, gantt(loaded, loaded.step))
    if args.explain_json:
        output.write_json(args.explain_json, "considered", considered.considered(loaded))
    if args.json:
        output.print_json("plan", {"plan": loaded.model_dump(mode="json")})
    else:
        print(explanation.explanation(loaded))
        if args.svg:
            print(f"\nTimeline: {args.svg}")
        if args.trace:
            print(f"\nTrace: {args.trace}")
        if args.step_svg:
            print(f"\nStep: {args.step_svg}")
    return 0


def _explain_run(args: Namespace, found: SavedRun) -> int:
    """Prints the gain measured by each call site's trial."""
    if args.svg or args.trace or args.step_svg or args.explain_json or args.size:
        raise JaxcommError(
            f"{args.plan} is a run; only the trials of its plans can be explained.\n"
            "  Cure: use `jaxcomm report` to draw a run; give a plan file for the other options."
        )
    if args.json:
        output.print_json("run", {"run": found.model_dump(mode="json")})
    else:
        print(trials.trials(found, args.plan))
    return 0
