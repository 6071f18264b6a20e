"""Times jaxcomm.psum beside lax.psum, and beside the floor of this machine's memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxcomm import collectives, ffi
from jaxcomm.cli.common import job, spmd
from jaxcomm.cli.common.timing import Side, take_turns
from jaxcomm.plan import Plan

SMALL = 1024  # bytes of each of several calls in one jit


def measure(
    ranks: int, plan: Plan | None, nbytes: int, calls: int, rounds: int, each_round: Callable[[], object]
) -> dict[str, Any]:
    """One row: `calls` independent psums of `nbytes` bytes a rank in one jit, by both sides, turn by turn.

    Args:
      ranks: number of devices.
      plan: what jaxcomm runs; None leaves it the default.
      nbytes: bytes of one rank's f32 buffer, rounded up to whole numbers.
      calls: number of psums.
      rounds: turns of each side.
      each_round: called after every round.

    Returns:
      Medians in seconds, their ratio, bandwidths, the floor, and how many elements differed from lax on integers.
    """
    count, mesh = -(-nbytes // 4), spmd.mesh(ranks)
    schedule = plan.schedule_for(4 * count, "float32") if plan else None
    lax_psum: Any = jax.lax.psum  # untyped in JAX
    lax_step = _step(mesh, lambda x: lax_psum(x, spmd.AXIS))
    our_step = _step(mesh, lambda x: collectives.psum(x, spmd.AXIS, plan=plan))
    wrong = sum(
        int((spmd.here(ours) != spmd.here(theirs)).sum())
        for ours, theirs in zip(
            our_step(_integers(mesh, count, calls)), lax_step(_integers(mesh, count, calls)), strict=True
        )
    )
    # Zeros stay zeros, so that outputs can be inputs for ever.
    zeros = spmd.place(np.zeros((ranks, count), np.float32), mesh, spmd.SPLIT)
    start = [[jnp.copy(zeros) for _ in range(calls)] for _ in range(2)]
    del zeros
    sides = {"lax": Side(lax_step, start.pop()), "jaxcomm": Side(our_step, start.pop())}
    floors: list[float] = []

    def after_round() -> None:
        floors.append(calls * ffi.floor_seconds(ranks, 4 * count))
        each_round()

    seconds = {name: statistics.median(found) for name, found in take_turns(sides, rounds, after_round).items()}
    floor, rate = statistics.median(floors), calls * 4 * count / seconds["jaxcomm"] / 1e9
    return {
        "bytes": 4 * count,
        "calls": calls,
        "schedule": schedule.kind if schedule else "default",
        "lax_s": seconds["lax"],
        "jaxcomm_s": seconds["jaxcomm"],
        "ratio": seconds["lax"] / seconds["jaxcomm"],
        "gb_per_s": rate,
        "bus_gb_per_s": rate * 2 * (ranks - 1) / ranks,
        "floor_s": floor,
        "over_floor": seconds["jaxcomm"] / floor,
        "wrong": round(job.total(wrong)),
    }


def _step(mesh: Mesh, psum: Callable[[jax.Array], jax.Array]) -> Callable[[list[jax.Array]], list[jax.Array]]:
    mapped = jax.shard_map(
        lambda values: [psum(value) for value in values],
        mesh=mesh,
        in_specs=spmd.SPLIT,
        out_specs=spmd.SPLIT,
        check_vma=False,
    )
    step: Callable[[list[jax.Array]], list[jax.Array]] = jax.jit(mapped, donate_argnums=0)
    return step


def _integers(mesh: Mesh, count: int, calls: int) -> list[jax.Array]:
    values = np.random.default_rng(0).integers(-8, 8, (mesh.size, count)).astype(np.float32)
    return [spmd.place(values + call, mesh, spmd.SPLIT) for call in range(calls)]
