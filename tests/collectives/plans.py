"""Plans of given schedules, and plans whose step holds a given tree's gradients in given buckets."""

from __future__ import annotations

from typing import Any

import jax

from jaxcomm import ffi, schedules
from jaxcomm.plan import Plan

LATE = {"straggler": 3, "straggler_2": 6}


def make(*entries: tuple[int, int | None, dict[str, Any]], ranks: int = 8, dtypes: list[str] | None = None) -> Plan:
    """A plan of entries (first bytes, last bytes, schedule). The late ranks are 3 and, with 7 ranks or more, 6."""
    seconds = dict.fromkeys(["seconds", "ring", "halving_doubling", "direct", "broadcast", "lower_bound"], 1e-5)
    rows = [dict(zip(["min_bytes", "max_bytes", "schedule"], entry, strict=True)) for entry in entries]
    late = any("late" in row["schedule"] for row in rows)
    return Plan.model_validate(
        {
            "matches": {"ranks": ranks, "dtypes": dtypes},
            "roles": {role: rank for role, rank in LATE.items() if late and rank < ranks},
            "template": schedules.template(ranks).to_json() if late else None,
            "collectives": [{**row, "predicted": {"reference_bytes": 4096, **seconds}} for row in rows],
            "assumptions": {
                **dict.fromkeys(["alpha_s", "beta_s_per_byte", "residual", "min_gain"], 1e-6),
                "samples": 0,
                "link_source": "assumed",
                "ports": 8,
                "delay": None,
            },
            "provenance": {
                "profile": "0" * 64,
                "solver": "none",
                "status": "made",
                "gap": 0.0,
                "seed": 0,
                "versions": {},
            },
        }
    )


def with_halves(plan: Plan, *entries: tuple[int, int | None, dict[str, Any]], hosts: list[int]) -> Plan:
    """The plan with entries (first bytes, last bytes, schedule) for reduce-scatters and all-gathers, on these hosts."""
    figures = {"reference_bytes": 4096, "seconds": 1e-5, "lower_bound": 1e-5}
    rows = [dict(zip(["min_bytes", "max_bytes", "schedule"], entry, strict=True)) | figures for entry in entries]
    network = {"topology": {"hosts": hosts, "nic": "rank", "slow": 4.0}}
    return Plan.model_validate(plan.model_dump(exclude={"hash"}) | {"network": network, "halves": rows})


def selecting(early: dict[str, Any], late: dict[str, Any], lateness_s: float, ranks: int = 8) -> Plan:
    """A plan whose calls run `late` if rank 3 was `lateness_s` or more late in the previous call, otherwise `early`."""
    plan = make((0, None, SPECS["straggler"]), ranks=ranks)
    selector = {"rank": "straggler", "lateness_s": lateness_s, "early": early, "late": late, "seconds": 1e-5}
    document = plan.model_dump(exclude={"hash"})
    document["collectives"][0]["selector"] = selector
    return Plan.model_validate(document)


def by_turns(late: dict[str, Any], lateness_s: float = 0.001, ranks: int = 8) -> Plan:
    """A plan whose calls run `late` for a rank that has not arrived `lateness_s` after all others, otherwise direct."""
    document = make((0, None, SPECS["direct"]), ranks=ranks).model_dump(exclude={"hash"})
    selector = {"rank": "any", "lateness_s": lateness_s, "early": SPECS["direct"], "late": late, "seconds": 1e-5}
    document["collectives"][0]["selector"] = selector
    document["template"] = schedules.template(ranks).to_json()
    return Plan.model_validate(document)


SPECS: dict[str, dict[str, Any]] = {
    "ring": {"kind": "ring"},
    "halving_doubling": {"kind": "halving_doubling"},
    "direct": {"kind": "direct"},
    "broadcast": {"kind": "broadcast", "late": "straggler"},
    "straggler": {"kind": "straggler", "late": "straggler", "chunks": 10},
    "hybrid": {"kind": "hybrid", "late": "straggler", "chunks": 18, "covered": 10},
    "stragglers": {"kind": "stragglers", "late": ["straggler_2", "straggler"], "chunks": 16},
    "chain": {"kind": "chain", "late": ["straggler_2", "straggler"], "chunks": 14},
}
RING = make((0, None, SPECS["ring"]))


def step_plan(tree: Any, counts: list[int], *entries: tuple[int, int | None, dict[str, Any]]) -> Plan:
    """A plan whose bucket i has `counts[i]` gradients, the tree's last gradient first. Entries apply by bucket size."""
    plain = make(*(entries or [(0, None, {"kind": "direct"})]))
    leaves = reversed(jax.tree_util.tree_leaves_with_path(tree))
    gradients = [
        {"name": jax.tree_util.keystr(path, simple=True, separator="/"), "bytes": leaf.nbytes, "ready_s": 0.001 * i}
        for i, (path, leaf) in enumerate(leaves)
    ]
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    sizes = [
        sum(gradient["bytes"] for gradient in gradients[end - count : end])
        for count, end in zip(counts, ends, strict=True)
    ]
    planned = [
        {
            "gradients": count,
            "bytes": size,
            "schedule": plain.collectives[plain.index_for(size)].schedule.model_dump(),
            "before": None,
            "after": {"start_s": at, "end_s": at},
        }
        for count, size, at in zip(counts, sizes, [1.0 + i for i in range(len(counts))], strict=True)
    ]
    figures = dict.fromkeys(
        ["plain_seconds", "seconds", "scheduled_seconds", "lower_bound_seconds", "gap", "delay_s"], 0.0
    )
    step = {"buckets": len(gradients), "bytes": sum(sizes), "status": "made", **figures}
    document = plain.model_dump(exclude={"hash"}) | {"step": step | {"gradients": gradients, "planned": planned}}
    return Plan.model_validate(document)


def plans_seen() -> set[str]:
    """The plans of all calls since the last `reset_stats`."""
    return {site["plan"] for site in ffi.sites() if site["calls"]}
