"""The options that place ranks on hosts and racks. The options override the profile's hosts and racks."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from jaxcomm import profile
from jaxcomm.cli.common import arguments
from jaxcomm.errors import JaxcommError
from jaxcomm.profile import Profile

_SLOWER = 4.0  # transfer time per byte between hosts or racks, divided by that within a host or rack


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "--hosts", type=arguments.hosts, metavar="N+N", help="ranks of each host, in order (as the profile says)"
    )
    parser.add_argument(
        "--nic", choices=["rank", "host"], help="with --hosts: one NIC per rank, or one per host (rank)"
    )
    parser.add_argument(
        "--slow",
        type=arguments.slowness,
        metavar="X",
        help=f"with --hosts: time of a byte between hosts, relative to within one ({_SLOWER:g})",
    )
    parser.add_argument(
        "--racks", type=arguments.hosts, metavar="N+N", help="ranks of each rack, in order (as the profile says)"
    )
    parser.add_argument(
        "--uplink",
        type=arguments.slowness,
        metavar="X",
        help=f"with --racks: time of a byte between racks, relative to within one ({_SLOWER:g})",
    )


def apply(args: Namespace, measured: Profile) -> Profile:
    """Returns the profile with its ranks placed by the options.

    Raises:
      JaxcommError: the hosts or racks have another number of ranks than the profile, a host is in two racks, or an
        option needs another option.
    """
    for name, needs in (("nic", "hosts"), ("slow", "hosts"), ("uplink", "racks")):
        if getattr(args, name) is not None and getattr(args, needs) is None:
            raise JaxcommError(f"--{name} has no effect without --{needs}.\n  Cure: add --{needs}, such as 4+4.")
    fields: dict[str, Any] = {}
    for name in ("hosts", "racks"):
        given = getattr(args, name)
        if given is not None and len(given) != measured.ranks:
            raise JaxcommError(
                f"--{name} {_words(given)} names {len(given)} ranks, but {args.profile} is of {measured.ranks}.\n"
                f"  Cure: give the ranks of each {name[:-1]}, {measured.ranks} together."
            )
    if args.hosts:
        fields["topology"] = {"hosts": args.hosts, "nic": args.nic or "rank", "slow": args.slow or _SLOWER}
    if args.racks:
        fields["racks"] = [
            {
                "name": str(rack),
                "ranks": [rank for rank, home in enumerate(args.racks) if home == rack],
                "uplink": args.uplink or _SLOWER,
            }
            for rack in range(max(args.racks) + 1)
        ]
    hosts = args.hosts or (measured.topology and measured.topology.hosts)
    if args.racks and hosts and len({*zip(hosts, args.racks, strict=True)}) > len({*hosts}):
        raise JaxcommError(
            f"--racks {_words(args.racks)} cuts a host in two; the hosts have {_words(hosts)} ranks.\n"
            "  Cure: give racks of whole hosts."
        )
    if not fields:
        return measured
    return profile.validate({**measured.model_dump(), **fields, "timed_schedules": None, "trials": []}, args.profile)


def _words(homes: tuple[int, ...]) -> str:
    return "+".join(str(homes.count(home)) for home in dict.fromkeys(homes))
