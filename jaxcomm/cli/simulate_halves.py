"""`jaxcomm simulate --collective reduce_scatter` and `all_gather`: the time of every schedule over sizes and ranks."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from jaxcomm import simulate
from jaxcomm.cli.common import output
from jaxcomm.errors import JaxcommError
from jaxcomm.plan import Plan
from jaxcomm.plan.specs import build_half
from jaxcomm.plan.values import Plain
from jaxcomm.planner.halves import half_specs
from jaxcomm.planner.schedules import Setting
from jaxcomm.profile.cluster import Cluster
from jaxcomm.report.tables import bytes_text, seconds_text, table
from jaxcomm.report.words import spec_text
from jaxcomm.schedules import Schedule


def run(args: Namespace, links: Cluster, ranks: Sequence[int], planned: Plan | None) -> int:
    """Predicts and prints; the links and the ranks are those of `jaxcomm simulate`."""
    for name, given in (("--events", args.events), ("--plot", args.plot), ("--delay-ms", args.delay_ms)):
        if given:
            why = ", as a late rank gains nothing" if name == "--delay-ms" else ""
            raise JaxcommError(f"{name} is for all_reduce{why}.\n  Cure: leave it out, or --collective.")
    rows: list[dict[str, Any]] = []
    for n in ranks:
        where = links.topology if links.topology and len(links.topology.hosts) == n else None
        setting = Setting(ranks=n, links=dataclasses.replace(links, topology=where), ports=args.ports, min_gain=0.0)
        made = {spec: build_half(spec, args.collective, n, where) for spec in half_specs(setting)}
        for nbytes in args.sizes:
            times = {spec_text(spec): _seconds(each, nbytes, setting) for spec, each in made.items()}
            found = planned.half_for(args.collective, nbytes) if planned and planned.ranks == n else None
            if planned and planned.ranks == n and not found:  # which means direct
                found = build_half(Plain(kind="direct"), args.collective, n)
            rows.append(
                {
                    "ranks": n,
                    "nbytes": nbytes,
                    "seconds": times,
                    "lower_bound": simulate.half_lower_bound(n, nbytes, links.alpha, links.beta, args.ports, where),
                    "plan": _seconds(found, nbytes, setting) if found else None,
                    "plan_kind": found.kind if found else None,
                }
            )
    if args.json:
        link = {"alpha_s": links.alpha, "beta_s_per_byte": links.beta}
        output.print_json({**link, "collective": args.collective, "rows": rows})
        return 0
    speed = f"{seconds_text(links.alpha)} and {1e-9 / links.beta:.3g} GB/s a round"
    print(f"{speed}; times of {args.collective} by the whole buffer")
    kinds = list(dict.fromkeys(kind for row in rows for kind in row["seconds"]))
    has_plan = any(row["plan"] is not None for row in rows)
    header = ["ranks", "bytes", *kinds, *["plan"] * has_plan, "lower bound", "fastest"]
    print(table(header, [_cells(row, kinds, has_plan) for row in rows]))
    print("A late rank gains nothing: its own port bounds the call as when all come together.")
    return 0


def _seconds(schedule: Schedule, nbytes: int, setting: Setting) -> float:
    return simulate.phases(schedule, nbytes, *simulate.link_of(schedule, nbytes, setting.links))[1]


def _cells(row: dict[str, Any], kinds: Sequence[str], planned: bool) -> list[object]:
    times = row["seconds"]
    shown = [times.get(kind) for kind in kinds] + [row["plan"]] * planned + [row["lower_bound"]]
    fastest = min(times, key=lambda kind: times[kind])
    return [row["ranks"], bytes_text(row["nbytes"]), *(None if t is None else seconds_text(t) for t in shown), fastest]
