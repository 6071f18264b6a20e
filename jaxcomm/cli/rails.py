"""`jaxcomm rails`: the rails of this machine, or of a job's first process, each rail's share, and the fabrics."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from statistics import median
from typing import Any

from jaxcomm import plan
from jaxcomm.cli.common import job, options, output, progress
from jaxcomm.cli.exit_codes import OK
from jaxcomm.distributed.connect import settings
from jaxcomm.distributed.connect.interfaces import interfaces
from jaxcomm.distributed.launch.job import is_job
from jaxcomm.distributed.rails import fabrics, named_rails, rail_ends
from jaxcomm.distributed.rails.planned_rails import shares_of
from jaxcomm.distributed.rails.rail_ends import RailEnd
from jaxcomm.environment import FABRIC_TESTS, is_on
from jaxcomm.errors import JaxcommError
from jaxcomm.ffi.shares import UNITS, PlanRails, SharesFrom
from jaxcomm.report.tables import bytes_text, seconds_text, table

EXAMPLE = """
    jaxcomm rails
    JAXCOMM_RAILS=eth0:4000,eth1:1000 jaxcomm rails --json
    jaxcomm launch -n 2 --transport tcp -- jaxcomm rails
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("--plan", metavar="PLAN", help="show the shares of this plan's rails")
    options.as_json(parser)


def run(args: Namespace) -> int:
    """Prints the rails. In a job, all processes connect first, and only the first process prints."""
    planned = _planned(args.plan) if args.plan else None
    chosen = settings.from_environment()
    if is_job():
        job.use_devices(1)
        from jaxcomm.distributed.connect import members

        with progress.clock("connecting the job's processes"):
            membership = members.connected(planned=planned)
            job.barrier()  # no process exits while other processes connect
        if not job.is_first():
            return OK
        ends, by_process, round_trips = list(membership.ends), dict(membership.shares), membership.round_trips
        kinds = dict(zip(membership.rails, membership.kinds, strict=False))
    else:
        ends = _of_this_machine(chosen)
        by_process, round_trips, kinds = {}, {}, {}
    # Shows the rails' shares of messages to one process: the process that is reached over the most rails.
    shares = max(by_process.values(), key=lambda each: len(each[0].shares), default=None)
    if shares is None and ends:
        names = [rail.name for rail in ends]
        shares = rail_ends.shares(names, ends, ends, shares_of(planned, names, ends))
    shares = shares or []
    default = "udp" if chosen.transport == "udp" else "tcp"
    rows = [
        {**_row(rail, shares[-1], by_process, round_trips), "kind": kinds.get(rail.name, rail.kind or default)}
        for rail in ends
    ]
    found = [{**each._asdict(), "rail": each.rail, "is_for_tests": each.is_for_tests} for each in fabrics.domains()]
    source = rail_ends.source(ends, is_planned=bool(planned), is_named=any(each.rate for each in chosen.rails))
    if args.json:
        ranges = [{"min_bytes": low, "shares": dict(each)} for low, each in shares]
        output.print_json(
            "rails", {"rails": rows, "shares_from": source, "ranges": ranges, "of": UNITS, "fabrics": found}
        )
    else:
        print(_table(rows))
        print(f"Shares, shown for the largest calls: {source}.")
        if not planned and len(shares) > 1:
            [cold] = [row["rail"] for row, rail in zip(rows, ends, strict=True) if shares[0].shares.get(rail.name)]
            print(f"Calls of less than {bytes_text(shares[1].min_bytes)}: {cold} alone, by its round trip.")
        print(f"\n{_fabrics(found)}")
    return OK


def _planned(path: str) -> PlanRails:
    found = plan.load(path).rails
    if found is None:
        raise JaxcommError(f"{path}: has no rails.\n  Cure: leave out --plan, or plan from a profile with rails.")
    return found.planned()


def _of_this_machine(chosen: settings.Settings) -> list[RailEnd]:
    if coordinator := os.environ.get("JAX_COORDINATOR_ADDRESS"):
        return rail_ends.own_rails(chosen, coordinator)
    try:
        return rail_ends.own_rails(chosen, rail_ends.ANY_HOST)
    except JaxcommError as error:
        if chosen.rails or chosen.interface:
            raise
        listed = ", ".join(each.name for each in interfaces()) or "none"
        raise JaxcommError(
            f"this machine has no default route to other hosts; its interfaces are: {listed}.\n"
            "  Cure: name those between the hosts, as in JAXCOMM_RAILS=eth0,eth1, or set JAX_COORDINATOR_ADDRESS."
        ) from error


def _row(
    rail: RailEnd, largest: SharesFrom, by_process: dict[int, Any], round_trips: Mapping[tuple[int, str], float]
) -> dict[str, Any]:
    is_fabric = rail.kind == named_rails.FABRIC  # a fabric's address is that of the TCP connection beside it
    there = None if is_fabric else next((each for each in interfaces() if each.address == rail.address), None)
    measured = [seconds for (_, name), seconds in round_trips.items() if name == rail.name]
    return {
        "rail": rail.name or (there.name if there else rail.address),
        "interface": there.name if there else None,
        "address": rail.address,
        "mbit": (rail.rate if is_fabric else there.mbit if there else 0) or None,
        "state": there.state if there else None,
        "round_trip_s": median(measured) if measured else None,
        "share": largest.shares.get(rail.name, 0),
        "peers": sorted(process for process, ranges in by_process.items() if rail.name in ranges[0].shares),
    }


def _fabrics(found: list[dict[str, Any]]) -> str:
    """One line for each fabric that a user may name as a rail."""
    usable = [each for each in found if not each["is_for_tests"] or is_on(FABRIC_TESTS)]
    if usable:
        cells = [[each["rail"], each["provider"], each["domain"], each["mbit"] or "-"] for each in usable]
        return table(["fabric, for JAXCOMM_RAILS", "provider", "domain", "Mbit/s"], cells)
    why = "finds none faster than TCP" if found else "is not installed"
    return f"Fabrics: none, as libfabric {why}."


def _table(rows: list[dict[str, Any]]) -> str:
    head = ["rail", "kind", "interface", "address", "Mbit/s", "state", "round trip", "share", "peers"]
    cells = [
        [
            row["rail"],
            row["kind"],
            row["interface"] or "-",
            row["address"],
            row["mbit"] or "-",
            row["state"] or "-",
            seconds_text(row["round_trip_s"]) if row["round_trip_s"] else "-",
            f"{row['share'] / UNITS:.1%}",
            ", ".join(map(str, row["peers"])) or "-",
        ]
        for row in rows
    ]
    return table(head, cells)
