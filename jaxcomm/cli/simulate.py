"""`jaxcomm simulate`: the α–β time of every schedule over sizes, delays and ranks, or runs message by message."""

from __future__ import annotations

import dataclasses
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import get_args

from jaxcomm import files, plan, profile, simulate
from jaxcomm.cli import simulate_events, simulate_halves
from jaxcomm.cli.common import arguments, output, progress
from jaxcomm.errors import JaxcommError, require_extras
from jaxcomm.planner.schedules import choose_executor
from jaxcomm.profile.cluster import Cluster
from jaxcomm.report import plots
from jaxcomm.report.tables import bytes_text, seconds_text, table
from jaxcomm.schedules.schedule import CollectiveKind
from jaxcomm.simulate import SweepRow

EXAMPLE = """
    jaxcomm simulate --ranks 8,64,1024 --delay-ms 0,20 --alpha-us 10 --gigabytes-per-s 25 --plot times.png
    jaxcomm simulate --profile profile.json --plan plan.json --sizes 1MiB,16MiB
    jaxcomm simulate --profile profile.json --plan plan.json --sizes 1MiB,16MiB --collective all_gather
    jaxcomm simulate --profile profile.json --plan plan.json --sizes 64MiB --events --packet-loss 0.1% --bound 10%
"""

_MAX_RANKS = 1024
_MAX_PORTS = 4096
_COLUMNS = {
    "ring": "ring",
    "halving_doubling": "halving/doubling",
    "direct": "direct",
    "broadcast": "broadcast",
    "straggler": "straggler",
    "plan": "plan",
    "lower_bound": "lower bound",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("--ranks", type=arguments.counts, default=[8, 64, 1024], help="numbers of ranks (8,64,1024)")
    parser.add_argument(
        "--sizes",
        type=arguments.sizes,
        default=arguments.sizes("1KiB..1GiB"),
        help="sizes; A..B in steps of 4x (1KiB..1GiB)",
    )
    parser.add_argument("--delay-ms", type=arguments.milliseconds, help="how late one rank is (0,20)")
    parser.add_argument("--alpha-us", type=float, default=10.0, help="latency of a round in microseconds (10)")
    parser.add_argument("--gigabytes-per-s", type=float, default=25.0, help="of a rank; 200 Gbit/s are 25 (25)")
    parser.add_argument("--profile", help="take the ranks, the link and the median delay from this profile")
    parser.add_argument("--plan", help="also predict this plan, for its number of ranks")
    parser.add_argument(
        "--collective", choices=[*get_args(CollectiveKind)], default="all_reduce", help="which one (all_reduce)"
    )
    parser.add_argument("--ports", type=int, default=simulate.PORTS, help=f"peers of a rank at once ({simulate.PORTS})")
    parser.add_argument("--events", action="store_true", help="run message by message, on the profile's network")
    parser.add_argument(
        "--packet-loss", type=arguments.fraction, metavar="0.1%", help="with --events: packets that are lost"
    )
    parser.add_argument(
        "--bound",
        type=arguments.fraction,
        metavar="10%",
        help="with --events: share of a message that may stay lost (nothing)",
    )
    parser.add_argument("--repeat", type=int, default=100, help="with --events: runs of each schedule, at most (100)")
    parser.add_argument("--plot", metavar="FILE.png", help="also draw the table, both axes logarithmic")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")


def run(args: Namespace) -> int:
    """Predicts, prints and plots."""
    if not (0 <= args.alpha_us <= 1e9 and 1e-9 <= args.gigabytes_per_s <= 1e9 and 1 <= args.ports <= _MAX_PORTS):
        raise JaxcommError(
            f"--alpha-us is {args.alpha_us:g}, --gigabytes-per-s {args.gigabytes_per_s:g} and --ports {args.ports}; "
            f"a latency must be in 0..1e9, a bandwidth in 1e-9..1e9, and a rank's ports in 1..{_MAX_PORTS}.\n"
            "  Cure: change the one that is outside."
        )
    if not 2 <= min(args.ranks) <= max(args.ranks) <= _MAX_RANKS:
        raise JaxcommError(
            f"--ranks goes from {min(args.ranks)} to {max(args.ranks)}; it must stay in 2..{_MAX_RANKS}.\n"
            "  Cure: name such ranks."
        )
    if args.packet_loss is not None and args.packet_loss > 0.5:
        raise JaxcommError(
            f"--packet-loss is {100 * args.packet_loss:g}%; no model of ours is for links that lose more than half.\n"
            "  Cure: a smaller one."
        )
    if not args.events and (args.packet_loss is not None or args.bound is not None):
        raise JaxcommError("--packet-loss and --bound need runs message by message.\n  Cure: add --events")
    if args.events and args.plot:
        raise JaxcommError("--events draws no --plot.\n  Cure: leave out one of them")
    if args.repeat < 1:
        raise JaxcommError(f"--repeat is {args.repeat}; it must be at least 1.\n  Cure: leave it out.")
    alpha, beta = args.alpha_us / 1e6, 1e-9 / args.gigabytes_per_s
    ranks, delays = args.ranks, args.delay_ms or [0.0, 0.02]
    topology, incast = None, 1.0
    if args.profile:
        measured, _ = choose_executor(profile.load(args.profile))
        alpha, beta, ranks = measured.link.alpha_s, measured.link.beta_s_per_byte, [measured.ranks]
        topology, incast = measured.network, measured.incast or 1.0
        if args.delay_ms is None and measured.arrivals:
            late = profile.find_straggler(measured)
            delays = [late.median_s if late.is_late else 0.0]
    files.check_writable(args.plot)
    if args.plot:
        require_extras("--plot", "matplotlib")
    planned = plan.load(args.plan) if args.plan else None
    if planned and planned.ranks not in ranks:
        raise JaxcommError(
            f"{args.plan} is for {planned.ranks} ranks, which are not among those predicted: "
            f"{', '.join(map(str, ranks))}.\n  Cure: --ranks {planned.ranks}"
        )
    if planned and not args.profile:
        topology = planned.network.topology if planned.network else None
        incast = planned.assumptions.incast or 1.0
    if args.collective != "all_reduce":
        return simulate_halves.run(args, Cluster(alpha, beta, topology, incast=incast), ranks, planned)
    if args.events:
        return simulate_events.run(args, alpha, beta, ranks, delays, planned)
    rows = simulate.sweep(
        ranks, args.sizes, delays, alpha, beta, plan=planned, ports=args.ports, topology=topology, incast=incast
    )
    with progress.Bar(len(ranks) * len(args.sizes) * len(delays), "simulating") as bar:
        found = []
        for row in rows:
            found.append(row)
            bar.update()
    if args.plot:
        picture = plots.png([*_panels(found)], x="bytes of one rank's buffer", y="seconds after the arrival", log=True)
        files.write(args.plot, picture)
    if args.json:
        document = {"alpha_s": alpha, "beta_s_per_byte": beta, "rows": [dataclasses.asdict(row) for row in found]}
        output.print_json(document)
    else:
        print(f"{seconds_text(alpha)} and {1e-9 / beta:.3g} GB/s a round; times from the late rank's arrival on")
        names = [key for key in _COLUMNS if any(getattr(row, key) is not None for row in found)]
        header = ["ranks", "bytes", "late by", *(_COLUMNS[key] for key in names), "chunks", "fastest", "saves"]
        print(table(header, [_cells(row, names) for row in found]))
        print("straggler: the best of its family, in so many chunks; saves: of the fastest that uses no delay")
    return 0


def _cells(row: SweepRow, names: list[str]) -> list[object]:
    seconds = [getattr(row, name) for name in names]
    shown = [None if each is None else seconds_text(each) for each in seconds]
    chunks = str(row.chunks) if row.covered == row.chunks else f"{row.chunks} ({row.covered} covered)"
    plain = {"ring": row.ring, "halving/doubling": row.halving_doubling, "direct": row.direct or math.inf}
    fastest = min(plain, key=lambda name: plain[name])
    gain = 1 - row.straggler / plain[fastest]
    verdict = ["straggler", f"{gain:.0%}"] if gain > 0 else [fastest, None]
    return [row.ranks, bytes_text(row.nbytes), seconds_text(row.delay_s), *shown, chunks, *verdict]


def _panels(found: list[SweepRow]) -> Iterator[list[plots.Panel]]:
    for delay in dict.fromkeys(row.delay_s for row in found):
        panels = []
        for ranks in dict.fromkeys(row.ranks for row in found):
            here = [row for row in found if (row.ranks, row.delay_s) == (ranks, delay)]
            lines = {}
            for key, name in _COLUMNS.items():
                points = [(row.nbytes, getattr(row, key)) for row in here if getattr(row, key) is not None]
                if points:
                    lines[name] = ([float(x) for x, _ in points], [y for _, y in points])
            panels.append(plots.Panel(f"{ranks} ranks, one late by {seconds_text(delay)}", lines))
        yield panels
