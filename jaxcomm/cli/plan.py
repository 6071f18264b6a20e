"""`jaxcomm plan`: makes a plan file from a profile."""

from __future__ import annotations

import sys
import textwrap
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator

from jaxcomm import files, plan, planner, profile
from jaxcomm.cli.common import arguments, job, network_options, options, output, progress
from jaxcomm.errors import JaxcommError
from jaxcomm.report.plan import considered, explanation
from jaxcomm.report.plan.drops import drops_headline
from jaxcomm.report.plan.groups import groups_headline
from jaxcomm.report.plan.halves import halves_table
from jaxcomm.report.plan.lost_rails import lost_rail_lines
from jaxcomm.report.plan.rails import rails_headline
from jaxcomm.report.plan.step import relaxed_lines, step_headline
from jaxcomm.report.plan.timed_schedules import extrapolated_links
from jaxcomm.report.plan.transport import transport_headline
from jaxcomm.report.tables import seconds_text

EXAMPLE = """
    jaxcomm plan profile.json --out plan.json
    jaxcomm plan profile.json --hosts 4+4 --nic host --slow 4
    jaxcomm plan profile.json --racks 5+3 --uplink 4 --model-bytes 100MiB
    jaxcomm plan profile.json --model VGG16 --drop-budget 5%
    jaxcomm plan profile.json --min-gain 5% --time-limit 30 --solver-log
    jaxcomm plan late.json --try    # run the best candidates here; for a job, under jaxcomm launch
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("profile", help="a profile, from `jaxcomm profile`")
    parser.add_argument("--out", default="plan.json", help="the plan to write (plan.json)")
    parser.add_argument(
        "--time-limit", type=arguments.seconds, default=10.0, metavar="S", help="seconds for each search (10)"
    )
    parser.add_argument(
        "--min-gain",
        type=arguments.fraction,
        metavar="SHARE",
        help="least saving for which a schedule uses the delay (residual of the link's fit, at least 2%%)",
    )
    options.ports(parser)
    network_options.add_arguments(parser)
    options.model_bytes(parser, "all buckets, or the collective")
    parser.add_argument(
        "--drop-bound",
        type=arguments.fraction,
        metavar="SHARE",
        help="share of each gradient that may be lost (as measured)",
    )
    parser.add_argument(
        "--drop-budget",
        type=arguments.fraction,
        metavar="SHARE",
        help="share of all gradients that may be dropped (the bound)",
    )
    parser.add_argument("--model", default="", metavar="NAME", help="take the drop bound published for this model")
    parser.add_argument("--seed", type=int, default=0, help="seed of the searches (0)")
    parser.add_argument("--solver-log", action="store_true", help="show the solver's log on standard error")
    parser.add_argument(
        "--try",
        action="store_true",
        dest="tries",
        help="run the best candidates of each byte range here, with ranks late as profiled, and keep the fastest",
    )
    parser.add_argument(
        "--try-limit", type=arguments.seconds, default=60.0, metavar="S", help="seconds for --try, roughly (60)"
    )
    parser.add_argument("--dry-run", action="store_true", help="plan and show, write nothing")
    options.considered(parser)
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Makes and proves the plan, writes the plan file, and prints the summary."""
    measured = network_options.apply(args, profile.load(args.profile))
    files.check_writable(None if args.dry_run else args.out, args.explain_json)
    log = (lambda line: print(line, file=sys.stderr)) if args.solver_log else None
    with progress.Bar(1.0, "planning") as bar:
        made = planner.plan(
            measured,
            time_limit=args.time_limit,
            seed=args.seed,
            min_gain=args.min_gain,
            ports=args.ports,
            drop_bound=args.drop_bound,
            drop_budget=args.drop_budget,
            model=args.model,
            progress=lambda share: bar.update(share - bar.n),
            log=log,
            model_bytes=args.model_bytes,
        )
    made, notes = _tried(args, made, measured) if args.tries else (made, [])
    plan.verify(made)
    if args.tries and not job.is_first():
        return 0
    if not args.dry_run:
        plan.save(made, args.out)
    if args.explain_json:
        output.write_json(args.explain_json, "considered", considered.considered(made))
    if args.json:
        output.print_json("plan", {"plan": made.model_dump(mode="json")})
        return 0
    print(f"Plan {made.hash[:12]} for {made.ranks} ranks; predicted times from the late rank's arrival on\n")
    print(explanation.summary(made))
    notes = [*extrapolated_links(measured), *notes]
    print(*notes, sep="\n", end="\n" * bool(notes))
    if decided := [*_headlines(made)]:
        print("", *decided, sep="\n")
    written = f"Plan: {args.out}; next: jaxcomm explain {args.out} --svg timeline.svg"
    print("\nNothing was written (--dry-run)." if args.dry_run else f"\n{written}")
    return 0


def _tried(args: Namespace, made: plan.Plan, measured: profile.Profile) -> tuple[plan.Plan, list[str]]:
    """The plan with the schedules that were fastest here, and notes on the timed ranges."""
    devices = job.use_devices(measured.ranks)
    if devices != measured.ranks:
        raise JaxcommError(
            f"--try: the profile is of {measured.ranks} ranks; this job has {devices}.\n"
            f"  Cure: start {measured.ranks}, or profile this job."
        )
    from jaxcomm.cli import plan_try

    with progress.Bar(len(made.collectives), "trying") as bar:
        found = plan_try.tried(made, measured, args.try_limit, bar.update)
    late = (
        ", ".join(f"rank {rank} late by {seconds_text(each)}" for rank, each in found.delays.items()) or "no rank late"
    )
    notes = [f"Tried here: {found.ranges} byte ranges in {found.seconds:.0f} s, {late}."]
    if found.left:
        why = "above 64 MiB, with two schedules, for a step's smaller buckets, or beyond --try-limit"
        notes += [f"Not tried: {found.left} ({why})."]
    return found.plan, notes


def _headlines(made: plan.Plan) -> Iterator[str]:
    """Describes each decision other than the schedules."""
    if made.halves:
        yield "psum_scatter and all_gather between processes:\n" + halves_table(made.halves) + "\n"
    if made.rails:
        yield rails_headline(made.rails)
    yield from (textwrap.fill(line, 110) for line in lost_rail_lines(made))
    if made.groups:
        yield groups_headline(made.groups)
    if made.drops:
        yield drops_headline(made.drops)
    if made.transport:
        yield transport_headline(made.transport)
    if made.step:
        yield step_headline(made.step)
        yield from relaxed_lines(made.step)
