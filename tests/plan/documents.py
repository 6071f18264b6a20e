"""The document of a plan file, and functions that change a document."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from jaxcomm import plan, schedules
from jaxcomm.errors import PlanError
from jaxcomm.plan import files

RANKS = 6

PREDICTED = {
    "reference_bytes": 4096,
    "seconds": 1e-5,
    "ring": 2e-5,
    "halving_doubling": 2e-5,
    "direct": 1e-5,
    "broadcast": 3e-5,
    "lower_bound": 5e-6,
}
STRAGGLER = {"kind": "straggler", "late": "straggler", "chunks": 11}
HYBRID = {"kind": "hybrid", "late": "straggler", "chunks": 19, "covered": 7}


def entry(low: int, high: int | None, schedule: dict[str, Any]) -> dict[str, Any]:
    row = {"schedule": schedule, "seconds": 1e-5, "gain": 0.5, "verdict": "chosen"}
    return {
        "min_bytes": low,
        "max_bytes": high,
        "schedule": schedule,
        "predicted": PREDICTED,
        "alternatives": [row, {**row, "gain": -0.25, "verdict": "slower"}],
    }


def spans(before: tuple[float, float], after: tuple[float, float]) -> dict[str, Any]:
    """The fields `before` and `after` of a planned bucket."""
    return {name: {"start_s": start, "end_s": end} for name, (start, end) in (("before", before), ("after", after))}


PLAN: dict[str, Any] = {
    "format": "jaxcomm-plan",
    "version": 1,
    "matches": {"ranks": RANKS, "dtypes": ["float32", "bfloat16"], "topology": None},
    "roles": {"straggler": 3},
    "template": schedules.template(RANKS).to_json(),
    "collectives": [
        entry(0, 511, {"kind": "direct"}),
        entry(512, 1023, {"kind": "broadcast", "late": "straggler"}),
        entry(1024, 65535, {"kind": "halving_doubling"}),
        entry(65536, 65536, STRAGGLER),
        entry(65537, 10**9, HYBRID),
        entry(10**9 + 1, None, {"kind": "ring"}),
    ],
    "assumptions": {
        "alpha_s": 3e-6,
        "beta_s_per_byte": 1e-10,
        "residual": 0.01,
        "samples": 12,
        "link_source": "made up, in mål",
        "ports": 16,
        "min_gain": 0.02,
        "delay": {
            "steps": 9,
            "late_steps": 8,
            "median_s": 0.01,
            "mean_s": 0.01,
            "max_s": 0.02,
            "first_quarter_s": 0.02,
            "last_quarter_s": 0.01,
        },
    },
    "step": {
        "buckets": 3,
        "bytes": 10**6,
        "plain_seconds": 0.02,
        "seconds": 0.01,
        "scheduled_seconds": 0.015,
        "lower_bound_seconds": 0.005,
        "status": "OPTIMAL",
        "gap": 0.0,
        "delay_s": 0.01,
        "gradients": [
            {"name": "head", "bytes": 65536, "ready_s": 0.001},
            {"name": "body", "bytes": 900000, "ready_s": 0.002},
            {"name": "embedding", "bytes": 34464, "ready_s": 0.003},
        ],
        "planned": [
            {
                "gradients": 1,
                "bytes": 65536,
                "schedule": STRAGGLER,
                **spans((0.001, 0.002), (0.011, 0.012)),
            },
            {"gradients": 2, "bytes": 934464, "schedule": HYBRID, **spans((0.003, 0.006), (0.013, 0.023))},
        ],
    },
    "provenance": {
        "profile": "0" * 64,
        "solver": "cp_sat",
        "status": "OPTIMAL",
        "gap": 0.0,
        "seed": 0,
        "versions": {"ortools": "9.15.6755"},
    },
}

HALVES: list[dict[str, Any]] = [
    {"min_bytes": low, "max_bytes": high, "schedule": {"kind": kind}, "alternatives": []}
    | {"reference_bytes": 4096, "seconds": 1e-5, "lower_bound": 5e-6}
    for low, high, kind in ((0, 2**20 - 1, "direct"), (2**20, None, "ring"))
]


def replaced(document: Any, *path: Any, to: Any) -> Any:
    """The document with the value at the path replaced, or removed if `to` is Ellipsis."""
    document = copy.deepcopy(document)
    place = document
    for step in path[:-1]:
        place = place[step]
    if to is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return document


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with its plan's hash. An invalid document gets zeros, because it is refused before the check."""
    try:
        return {**document, "hash": files.validate(document, "plan").hash}
    except PlanError:
        return {**document, "hash": "0" * 64}


def load(file: Path, document: Any, **options: Any) -> plan.Plan:
    """Writes the document to the file, and loads the plan from the file."""
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return plan.load(file, **options)
