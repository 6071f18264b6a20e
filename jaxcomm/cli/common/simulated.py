"""The options that describe a simulated cluster, and the function that makes the cluster from them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Final, NamedTuple

from jaxcomm import plan, profile
from jaxcomm.cli.common import arguments, options
from jaxcomm.errors import JaxcommError
from jaxcomm.plan import Plan
from jaxcomm.planner.schedules import choose_executor
from jaxcomm.profile import Profile
from jaxcomm.profile.cluster import Cluster

_MAX_RANKS: Final = 1024
LATE: Final = (0.0, 0.02)  # default delays in seconds


class Simulated(NamedTuple):
    """A simulated cluster, with the profile (`measured`) and the plan (`planned`) that the options name.

    `delays` are one late rank's delays in seconds; None if neither an option nor the profile gives delays.
    """

    ranks: list[int]
    links: Cluster
    delays: list[float] | None
    measured: Profile | None
    planned: Plan | None


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    help = "numbers of ranks (8,64,1024)"
    parser.add_argument("--ranks", type=arguments.counts, default=[8, 64, 1024], metavar="A,B..C", help=help)
    options.sizes(parser, "1KiB..1GiB", "bytes of one rank's buffer")
    parser.add_argument(
        "--late-ms", type=arguments.milliseconds, metavar="A,B", help="delays of one late rank, one case each (0,20)"
    )
    parser.add_argument(
        "--alpha-us", type=arguments.number(0, 1e9), default=10.0, help="latency of a round in microseconds (10)"
    )
    parser.add_argument(
        "--gigabytes-per-s",
        type=arguments.number(1e-9, 1e9),
        default=25.0,
        help="bandwidth of a rank; 200 Gbit/s are 25 (25)",
    )
    parser.add_argument("--profile", help="take the ranks, the link and the median delay from this profile")
    parser.add_argument("--plan", help="also predict this plan, for its number of ranks")


def read(args: Namespace) -> Simulated:
    """Loads the files and applies the options.

    Raises:
      JaxcommError: a number of ranks is out of range, or the plan is for another number of ranks.
    """
    if min(args.ranks) < 2 or max(args.ranks) > _MAX_RANKS:
        raise JaxcommError(
            f"--ranks goes from {min(args.ranks)} to {max(args.ranks)}; it must stay in 2..{_MAX_RANKS}.\n"
            "  Cure: name such ranks."
        )
    links, ranks, delays = Cluster(args.alpha_us / 1e6, 1e-9 / args.gigabytes_per_s), args.ranks, args.late_ms
    measured = planned = None
    if args.profile:
        measured, _ = choose_executor(profile.load(args.profile))
        link = measured.link
        links = Cluster(link.alpha_s, link.beta_s_per_byte, measured.network, incast=measured.incast or 1.0)
        ranks = [measured.ranks]
        if delays is None and measured.arrivals:
            late = profile.find_straggler(measured)
            delays = [late.median_s if late.is_late else 0.0]
    if args.plan:
        planned = plan.load(args.plan)
        if planned.ranks not in ranks:
            raise JaxcommError(
                f"{args.plan} is for {planned.ranks} ranks; the numbers to predict are: "
                f"{', '.join(map(str, ranks))}.\n  Cure: --ranks {planned.ranks}"
            )
        if not measured:
            topology = planned.network.topology if planned.network else None
            links = Cluster(links.alpha, links.beta, topology, incast=planned.assumptions.incast or 1.0)
    return Simulated(ranks, links, delays, measured, planned)
