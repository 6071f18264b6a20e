"""Plans whose step holds a given tree's gradients in given buckets."""

from __future__ import annotations

from typing import Any

import jax

from jaxcomm.plan import Plan
from tests.collectives.test_active_plan import make


def step_plan(tree: Any, counts: list[int], *entries: tuple[int, int | None, dict[str, Any]]) -> Plan:
    """Buckets of so many gradients, the last one first, as a backward pass has them; each runs its size's entry."""
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
            "parts": [{"rail": None, "share": 1.0, "before": None, "after": {"start_s": at, "end_s": at}}],
        }
        for count, size, at in zip(counts, sizes, [1.0 + i for i in range(len(counts))], strict=True)
    ]
    figures = dict.fromkeys(["plain_seconds", "seconds", "kept_seconds", "lower_bound_seconds", "gap", "delay_s"], 0.0)
    step = {"buckets": len(gradients), "bytes": sum(sizes), "status": "made", **figures}
    document = plain.model_dump(exclude={"hash"}) | {"step": step | {"gradients": gradients, "planned": planned}}
    return Plan.model_validate(document)
