"""`jaxcomm simulate --collective reduce_scatter` and `all_gather`: the time of every schedule over sizes and ranks."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from jaxcomm import simulate
from jaxcomm.cli.common import output
from jaxcomm.cluster import Cluster, Topology
from jaxcomm.errors import JaxcommError
from jaxcomm.plan import Plan
from jaxcomm.plan.specs import build_half
from jaxcomm.plan.values import Plain
from jaxcomm.planner.schedules import Setting, half_specs
from jaxcomm.report.tables import bytes_text, seconds_text, table
from jaxcomm.report.words import spec_text


def run(
    args: Namespace, alpha: float, beta: float, ranks: Sequence[int], topology: Topology | None, planned: Plan | None
) -> int:
    """Predicts and prints; the link, the ranks and the topology are those of `jaxcomm simulate`."""
    for name, given in (("--events", args.events), ("--plot", args.plot), ("--delay-ms", args.delay_ms)):
        if given:
            why = ", as a late rank gains nothing" if name == "--delay-ms" else ""
            raise JaxcommError(f"{name} is for all_reduce{why}.\n  Cure: leave it out, or --collective.")
    rows: list[dict[str, Any]] = []
    for n in ranks:
        where = topology if topology and len(topology.hosts) == n else None
        link = alpha, beta, where
        setting = Setting(ranks=n, links=Cluster(*link), ports=args.ports, min_gain=0.0)
        made = {spec: build_half(spec, args.collective, n, where) for spec in half_specs(setting)}
        for nbytes in args.sizes:
            times = {spec_text(spec): simulate.phases(each, nbytes, *link)[1] for spec, each in made.items()}
            found = planned.half_for(args.collective, nbytes) if planned and planned.ranks == n else None
            if planned and planned.ranks == n and not found:  # which means direct
                found = build_half(Plain(kind="direct"), args.collective, n)
            rows.append(
                {
                    "ranks": n,
                    "nbytes": nbytes,
                    "seconds": times,
                    "lower_bound": simulate.half_lower_bound(n, nbytes, alpha, beta, args.ports, where),
                    "plan": simulate.phases(found, nbytes, *link)[1] if found else None,
                    "plan_kind": found.kind if found else None,
                }
            )
    if args.json:
        output.print_json({"alpha_s": alpha, "beta_s_per_byte": beta, "collective": args.collective, "rows": rows})
        return 0
    print(f"{seconds_text(alpha)} and {1e-9 / beta:.3g} GB/s a round; times of {args.collective} by the whole buffer")
    kinds = list(dict.fromkeys(kind for row in rows for kind in row["seconds"]))
    has_plan = any(row["plan"] is not None for row in rows)
    header = ["ranks", "bytes", *kinds, *["plan"] * has_plan, "lower bound", "fastest"]
    print(table(header, [_cells(row, kinds, has_plan) for row in rows]))
    print("A late rank gains nothing: its own port bounds the call as when all come together.")
    return 0


def _cells(row: dict[str, Any], kinds: Sequence[str], planned: bool) -> list[object]:
    times = row["seconds"]
    shown = [times.get(kind) for kind in kinds] + [row["plan"]] * planned + [row["lower_bound"]]
    fastest = min(times, key=lambda kind: times[kind])
    return [row["ranks"], bytes_text(row["nbytes"]), *(None if t is None else seconds_text(t) for t in shown), fastest]
