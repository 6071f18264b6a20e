"""`jaxcomm profile import`: a profile from another tool's output."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from jaxcomm import profile
from jaxcomm.cli import output
from jaxcomm.report import measurements

EXAMPLE = """
    jaxcomm profile import training.log --out profile.json
    jaxcomm profile import trace.xplane.pb --out profile.json
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("file", help="a training log, output of nccl-tests, JAX trace or profile")
    parser.add_argument("--out", default="profile.json", help="the profile to write (profile.json)")
    parser.add_argument("--dry-run", action="store_true", help="read and show, write nothing")
    parser.add_argument("--json", action="store_true", help="print the profile as JSON")


def run(args: Namespace) -> int:
    """Reads, shows and writes."""
    found = profile.read_any(args.file)
    if not args.dry_run:
        profile.save(found, args.out)
    if args.json:
        output.print_json(found.model_dump())
    else:
        print(measurements.summary(found))
        written = f"Profile: {args.out}; next: jaxcomm plan {args.out}"
        print("\nNothing was written (--dry-run)." if args.dry_run else f"\n{written}")
    return 0
