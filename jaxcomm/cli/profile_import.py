"""`jaxcomm profile import`: a profile from another tool's output, or from a run's saved statistics."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import get_args

from jaxcomm import files, profile
from jaxcomm.cli.common import arguments, options, profiles
from jaxcomm.errors import JaxcommError
from jaxcomm.profile.schema import MAX_RANKS, ExecutorName

EXAMPLE = """
    jaxcomm profile import run.json --out profile.json         # a run, which wrote jaxcomm.stats().save("run.json")
    jaxcomm profile import training.log --out profile.json
    jaxcomm profile import trace.xplane.pb --out profile.json
    jaxcomm profile import all_reduce_perf.txt --executor nccl --into profile.json
    jaxcomm profile import eth1.txt --rail eth1=tcp --into profile.json
    jaxcomm profile import nccl_topology.xml --hosts 4 --out profile.json
    jaxcomm profile import pair_rates.txt --into profile.json
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "file",
        help="a training log, output of nccl-tests, JAX trace, jaxcomm.stats() or profile; or, to say where ranks are, "
        "output of nvidia-smi topo -m, NCCL's topology, or a matrix of bandwidths",
    )
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
    parser.add_argument(
        "--hosts",
        type=arguments.whole(1, MAX_RANKS),
        metavar="N",
        help="FILE describes one host; the profile has this number of such hosts",
    )
    parser.add_argument(
        "--into", metavar="PROFILE", help="the profile that gets the times, or learns where its ranks are"
    )
    parser.add_argument("--dry-run", action="store_true", help="read and show, write nothing")
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Reads, shows and writes."""
    if bool(args.executor) + bool(args.rail) > bool(args.into):
        raise JaxcommError(
            "--executor or --rail needs --into, and they are not given together.\n"
            "  Cure: --executor nccl --into profile.json, or --rail eth1=tcp --into profile.json"
        )
    if args.hosts and (args.into or args.executor or args.rail):
        raise JaxcommError(
            "--hosts makes a profile of its own; the one of --into says how many hosts there are.\n"
            "  Cure: give either --hosts or --into."
        )
    out = args.out or args.into or "profile.json"
    if not args.dry_run:
        files.check_writable(out)
    found = profile.read_any(args.file)
    if args.executor:
        found = profile.with_executor(profile.load(args.into), args.executor, found.link, found.ranks)
    elif args.rail:
        found = profile.with_rail(profile.load(args.into), args.rail.name, args.rail.transport, found.link, found.ranks)
    elif args.into:
        found = profile.with_network(profile.load(args.into), found)
    elif args.hosts:
        found = profile.on_hosts(found, args.hosts)
    profiles.finish(found, out, args)
    return 0
