"""`jaxcomm rails`: the rails of this machine, or of a job's first process, and what each of them carries."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from typing import Any

from jaxcomm import plan
from jaxcomm.cli.common import job, output
from jaxcomm.cli.exit_codes import OK
from jaxcomm.distributed import rails, settings
from jaxcomm.distributed.interfaces import interfaces
from jaxcomm.distributed.job import is_job
from jaxcomm.distributed.rails import RailEnd
from jaxcomm.errors import JaxcommError
from jaxcomm.report.tables import table
from jaxcomm.shares import UNITS, SharesFrom

EXAMPLE = """
    jaxcomm rails
    JAXCOMM_RAILS=eth0:4,eth1:1 jaxcomm rails --json
    jaxcomm launch -n 2 --transport tcp -- jaxcomm rails
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("--plan", metavar="PLAN", help="shares are those of this plan's rails")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: Namespace) -> int:
    """Prints the rails; in a job the processes are connected first, and the first one prints."""
    planned = _planned(args.plan) if args.plan else ()
    chosen = settings.from_environment()
    if is_job():
        job.use_devices(1)
        from jaxcomm.distributed import members

        membership = members.connected(planned=planned)
        job.barrier()  # nobody leaves while others connect
        if not job.is_first():
            return OK
        ends, by_process = list(membership.ends), dict(membership.shares)
    else:
        ends = _of_this_machine(chosen)
        by_process = {}
    # With a process that has the same rails, if there is one.
    shares = max(by_process.values(), key=lambda each: len(each[0].shares), default=None)
    shares = shares or (rails.shares([rail.name for rail in ends], ends, ends, planned) if ends else [])
    rows = [_row(rail, shares[-1], by_process) for rail in ends]
    source = rails.source(ends, planned, is_named=any(each.rate for each in chosen.rails))
    if args.json:
        ranges = [{"min_bytes": low, "shares": dict(each)} for low, each in shares]
        output.print_json({"rails": rows, "shares_from": source, "ranges": ranges, "of": UNITS})
    else:
        print(_table(rows))
        print(f"Shares, here of the largest calls: {source}.")
    return OK


def _planned(path: str) -> tuple[SharesFrom, ...]:
    found = plan.load(path).rails
    if found is None:
        raise JaxcommError(f"{path}: has no rails.\n  Cure: leave out --plan, or plan from a profile with rails.")
    return found.in_units()


def _of_this_machine(chosen: settings.Settings) -> list[RailEnd]:
    if coordinator := os.environ.get("JAX_COORDINATOR_ADDRESS"):
        return rails.own_rails(chosen, coordinator)
    try:
        return rails.own_rails(chosen, rails.ANY_HOST)
    except JaxcommError as error:
        if chosen.rails or chosen.interface:
            raise
        listed = ", ".join(each.name for each in interfaces()) or "none"
        raise JaxcommError(
            f"this machine has no way to other hosts in general; its interfaces are: {listed}.\n"
            "  Cure: name those between the hosts, as in JAXCOMM_RAILS=eth0,eth1, or set JAX_COORDINATOR_ADDRESS."
        ) from error


def _row(rail: RailEnd, largest: SharesFrom, by_process: dict[int, Any]) -> dict[str, Any]:
    there = next((each for each in interfaces() if each.address == rail.address), None)
    return {
        "rail": rail.name or (there.name if there else rail.address),
        "interface": there.name if there else None,
        "address": rail.address,
        "mbit": (there.mbit if there else 0) or None,
        "state": there.state if there else None,
        "share": largest.shares.get(rail.name, 0),
        "peers": sorted(process for process, ranges in by_process.items() if rail.name in ranges[0].shares),
    }


def _table(rows: list[dict[str, Any]]) -> str:
    head = ["rail", "interface", "address", "Mbit/s", "state", "share", "peers"]
    cells = [
        [
            row["rail"],
            row["interface"] or "-",
            row["address"],
            row["mbit"] or "-",
            row["state"] or "-",
            f"{row['share'] / UNITS:.1%}",
            ", ".join(map(str, row["peers"])) or "-",
        ]
        for row in rows
    ]
    return table(head, cells)
