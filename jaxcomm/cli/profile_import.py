"""`jaxcomm profile import`: a profile from another tool's output."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import get_args

from jaxcomm import files, profile
from jaxcomm.cli.common import arguments, output
from jaxcomm.errors import JaxcommError
from jaxcomm.profile.schema import ExecutorName
from jaxcomm.report import measurements

EXAMPLE = """
    jaxcomm profile import training.log --out profile.json
    jaxcomm profile import trace.xplane.pb --out profile.json
    jaxcomm profile import all_reduce_perf.txt --executor nccl --into profile.json
    jaxcomm profile import eth1.txt --rail eth1=tcp --into profile.json
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("file", help="a training log, output of nccl-tests, JAX trace, jaxcomm.stats() or profile")
    parser.add_argument("--out", help="the profile to write (the one of --into, or else profile.json)")
    parser.add_argument(
        "--executor",
        choices=get_args(ExecutorName),
        help="FILE timed this on CUDA devices: NCCL's own allreduce, or the ring as one of our executors runs it",
    )
    parser.add_argument(
        "--rail",
        type=arguments.rail,
        metavar="NAME=TRANSPORT",
        help="FILE timed allreduces on this rail alone, a network that all ranks share",
    )
    parser.add_argument("--into", metavar="PROFILE", help="with --executor or --rail: the profile that gets the times")
    parser.add_argument("--dry-run", action="store_true", help="read and show, write nothing")
    parser.add_argument("--json", action="store_true", help="print the profile as JSON")


def run(args: Namespace) -> int:
    """Reads, shows and writes."""
    if bool(args.executor) + bool(args.rail) != bool(args.into):
        raise JaxcommError(
            "--into needs either --executor or --rail, and each of them needs --into.\n"
            "  Cure: --executor nccl --into profile.json, or --rail eth1=tcp --into profile.json"
        )
    out = args.out or args.into or "profile.json"
    if not args.dry_run:
        files.check_writable(out)
    found = profile.read_any(args.file)
    if args.executor:
        found = profile.with_executor(profile.load(args.into), args.executor, found.link, found.ranks)
    if args.rail:
        found = profile.with_rail(profile.load(args.into), args.rail.name, args.rail.transport, found.link, found.ranks)
    if not args.dry_run:
        profile.save(found, out)
    if args.json:
        output.print_json(found.model_dump())
    else:
        print(measurements.summary(found))
        written = f"Profile: {out}; next: jaxcomm plan {out}"
        print("\nNothing was written (--dry-run)." if args.dry_run else f"\n{written}")
    return 0
