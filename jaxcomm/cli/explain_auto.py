"""`jaxcomm explain auto`: what a run with plan="auto" has done, and the plan that it had in the end."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from jaxcomm import files, plan
from jaxcomm.cli.common import output
from jaxcomm.cli.exit_codes import OK
from jaxcomm.errors import JaxcommError
from jaxcomm.plan.files import decode
from jaxcomm.profile import run_file
from jaxcomm.report import run_words

EXAMPLE = """
    jaxcomm explain auto run.json                      # a run of yours, which wrote jaxcomm.stats().save("run.json")
    jaxcomm explain auto run.json --json
    jaxcomm explain auto auto_run.json --out plan.json      # the plan in force, with which the next run can begin
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("run", help="a saved jaxcomm.stats() of the first process of the run")
    parser.add_argument("--out", metavar="PLAN", help="also write the plan that was in force")
    parser.add_argument("--json", action="store_true", help="print the events as JSON")


def run(args: Namespace) -> int:
    """Explains, and writes the plan."""
    found = run_file.load(args.run)
    if args.out:
        made = next((each for each in found.plans if each.file), None)
        if made is None:
            raise JaxcommError(
                f"{args.run}: the run had made no plan that was in force.\n"
                "  Cure: leave out --out; `jaxcomm explain auto` without it says what the run has done."
            )
        files.check_writable(args.out)
        plan.save(decode(json.dumps(made.file).encode(), f"{args.run}: the plan {made.plan}"), args.out)
    if args.json:
        output.print_json([event.model_dump() for event in found.events])
        return OK
    print(run_words.auto(found))
    if args.out:
        print(f'\nPlan: {args.out}; next: jaxcomm.init(plan="{args.out}")')
    return OK
