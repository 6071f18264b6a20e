"""`jaxcomm explain`: a plan in words, and as a picture."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from jaxcomm import files, plan
from jaxcomm.cli.common import options, output
from jaxcomm.errors import JaxcommError
from jaxcomm.report import considered, explanation, timeline, trace
from jaxcomm.report.step import gantt
from jaxcomm.simulate import link_of

EXAMPLE = """
    jaxcomm explain plan.json
    jaxcomm explain plan.json --svg timeline.svg --size 16MiB
    jaxcomm explain plan.json --trace rounds.json      # open it in ui.perfetto.dev
    jaxcomm explain plan.json --step-svg step.svg --explain-json considered.json
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("plan", help="a plan file")
    parser.add_argument("--svg", metavar="FILE", help="also draw the rounds of one schedule of the plan, by rank")
    parser.add_argument("--trace", metavar="FILE", help="also write these rounds as a trace, for ui.perfetto.dev")
    options.size(parser, "draw the schedule of this size (the one that saves most)")
    parser.add_argument(
        "--step-svg", metavar="FILE", help="also draw when the network, or each rail, works on each bucket"
    )
    options.considered(parser)
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Explains and draws."""
    loaded = plan.load(args.plan)
    files.check_writable(args.svg, args.trace, args.step_svg, args.explain_json)
    entry, schedule = explanation.headline(loaded)
    if args.size:
        found = loaded.schedule_for(args.size)
        assert found is not None  # without a dtype a plan has a schedule for every size
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
