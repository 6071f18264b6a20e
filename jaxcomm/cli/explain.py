"""`jaxcomm explain`: a plan in words, and as a picture; or what a run has in force."""

from __future__ import annotations

import datetime
from argparse import ArgumentParser, Namespace

from jaxcomm import files, plan
from jaxcomm.cli.common import arguments, output
from jaxcomm.errors import JaxcommError
from jaxcomm.profile import run_file
from jaxcomm.report import considered, explanation, run_words, timeline, trace
from jaxcomm.report.step import gantt
from jaxcomm.simulate import link_of

EXAMPLE = """
    jaxcomm explain plan.json
    jaxcomm explain plan.json --svg timeline.svg --bytes 16MiB
    jaxcomm explain plan.json --trace rounds.json      # open it in ui.perfetto.dev
    jaxcomm explain plan.json --step-svg step.svg --explain-json considered.json
    jaxcomm explain --live run.json                    # what a run has in force that goes on, and saves run.json
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("plan", help="a plan file; with --live, a run's saved jaxcomm.stats()")
    parser.add_argument("--live", action="store_true", help="say what is in force in a run: ranges, shares, thresholds")
    parser.add_argument("--svg", metavar="FILE", help="also draw the rounds of one schedule of the plan, by rank")
    parser.add_argument("--trace", metavar="FILE", help="also write these rounds as a trace, for ui.perfetto.dev")
    parser.add_argument(
        "--bytes", type=arguments.size, metavar="SIZE", help="draw the schedule of this size (the one that saves most)"
    )
    parser.add_argument(
        "--step-svg", metavar="FILE", help="also draw when the network, or each rail, works on each bucket"
    )
    parser.add_argument("--explain-json", metavar="FILE", help="also write all that was considered, and why, as JSON")
    parser.add_argument("--json", action="store_true", help="print the plan, with what it was compared with, as JSON")


def run(args: Namespace) -> int:
    """Explains and draws."""
    if args.live:
        return _live(args)
    loaded = plan.load(args.plan)
    files.check_writable(args.svg, args.trace, args.step_svg, args.explain_json)
    entry, schedule = explanation.headline(loaded)
    if args.bytes:
        found = loaded.schedule_for(args.bytes)
        assert found is not None  # without a dtype a plan has a schedule for every size
        schedule = found
    if args.svg:
        files.write(args.svg, timeline.svg(schedule))
    if args.trace:
        nbytes = args.bytes or entry.predicted.reference_bytes
        files.write(args.trace, trace.of_schedule(schedule, nbytes, *link_of(schedule, nbytes, loaded.links)))
    if args.step_svg:
        if loaded.step is None:
            raise JaxcommError(
                f"{args.plan}: the plan has no step to draw, as its profile has no gradient buckets.\n"
                "  Cure: plan from a profile with `buckets`."
            )
        files.write(args.step_svg, gantt(loaded, loaded.step))
    if args.explain_json:
        output.write_json(args.explain_json, considered.considered(loaded))
    if args.json:
        output.print_json(loaded.model_dump(mode="json"))
    else:
        print(explanation.explanation(loaded))
        if args.svg:
            print(f"\nTimeline: {args.svg}")
        if args.trace:
            print(f"\nTrace: {args.trace}")
        if args.step_svg:
            print(f"\nStep: {args.step_svg}")
    return 0


def _live(args: Namespace) -> int:
    """Says what the run that writes a file had in force when it last did."""
    drawn = ("svg", "trace", "bytes", "step_svg", "explain_json")
    if given := next((name for name in drawn if getattr(args, name)), None):
        option = f"--{given.replace('_', '-')}"
        raise JaxcommError(
            f"{option} is for a plan, and --live for a run.\n  Cure: leave out {option}, or jaxcomm report {args.plan}"
        )
    found = run_file.load(args.plan)
    if args.json:
        rails = [rail.model_dump(exclude={"spans", "changes"}) for rail in found.rails]
        plans = [each.model_dump(exclude={"file"}) for each in found.plans]
        output.print_json({"at_s": found.at_s, "plans": plans, "rails": rails})
    else:
        print(run_words.in_force(found, datetime.datetime.now(datetime.UTC)))
    return 0
