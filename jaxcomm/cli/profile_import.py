"""`jaxcomm profile import`: makes a profile from another tool's output, or from a run's saved statistics."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import get_args

from jaxcomm import files, profile
from jaxcomm.cli.common import arguments, options, profiles
from jaxcomm.errors import JaxcommError
from jaxcomm.profile import run_file, run_statistics
from jaxcomm.profile.files import read_bytes
from jaxcomm.profile.schema import MAX_RANKS, ExecutorName

EXAMPLE = """
    jaxcomm profile import run.json --out profile.json         # a run that called jaxcomm.stats().save("run.json")
    jaxcomm profile import tried_run.json --into profile.json  # the trials of a run's plans
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
        help="a training log, output of nccl-tests, JAX trace, jaxcomm.stats() or profile; or, for ranks' places, "
        "output of nvidia-smi topo -m, NCCL's topology, or a matrix of bandwidths",
    )
    parser.add_argument("--out", help="the profile to write (that of --into, or profile.json)")
    parser.add_argument(
        "--executor",
        choices=get_args(ExecutorName),
        help="executor that FILE timed on CUDA devices: NCCL's own allreduce, or the ring by an executor of jaxcomm",
    )
    parser.add_argument(
        "--rail",
        type=arguments.rail,
        metavar="NAME=TRANSPORT",
        help="FILE timed allreduces on this rail alone, a network that all ranks share: nccl-tests, or a job's profile",
    )
    parser.add_argument(
        "--hosts",
        type=arguments.whole(1, MAX_RANKS),
        metavar="N",
        help="FILE describes one host; the profile has this number of such hosts",
    )
    parser.add_argument(
        "--into",
        metavar="PROFILE",
        help="the profile to complete by the times, a run's trials of plans, or the places of ranks",
    )
    parser.add_argument("--dry-run", action="store_true", help="read and show, write nothing")
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Reads the file, writes the profile, and prints the summary."""
    if bool(args.executor) + bool(args.rail) > bool(args.into):
        raise JaxcommError(
            "--executor and --rail need --into and exclude each other.\n"
            "  Cure: --executor nccl --into profile.json, or --rail eth1=tcp --into profile.json"
        )
    if args.hosts and (args.into or args.executor or args.rail):
        raise JaxcommError(
            "--hosts makes a new profile; the profile of --into has its number of hosts already.\n"
            "  Cure: give either --hosts or --into."
        )
    out = args.out or args.into or "profile.json"
    if not args.dry_run:
        files.check_writable(out)
    if args.into and not (args.executor or args.rail) and run_statistics.sniff(data := read_bytes(args.file)):
        into = profile.load(args.into)
        tried = run_statistics.trials(run_file.decode(data, args.file), into.ranks)
        profiles.finish(profile.with_trials(into, tried, args.file), out, args)
        return 0
    found = profile.read_any(args.file)
    if args.executor:
        found = profile.with_executor(profile.load(args.into), args.executor, found.link, found.ranks)
    elif args.rail:
        found = profile.with_rail(profile.load(args.into), args.rail.name, args.rail.transport, found)
    elif args.into:
        found = profile.with_network(profile.load(args.into), found)
    elif args.hosts:
        found = profile.on_hosts(found, args.hosts)
    profiles.finish(found, out, args)
    return 0
