"""Measures schedules in turns on the same executor, from a late rank's arrival to the end of the call."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxcomm import collectives, ffi
from jaxcomm.cli.common import job, spmd
from jaxcomm.cli.common.arguments import Late
from jaxcomm.collectives.permutes import lowering as permutes
from jaxcomm.errors import JaxcommError
from jaxcomm.measure import psum_loop
from jaxcomm.plan import Plan, timed
from jaxcomm.plan.timed import ROLE
from jaxcomm.plan.values import Broadcast, Plain, Spec, StragglerSpec

_CHUNKS = re.compile("[1-9][0-9]{0,3}")
CALLS = 10  # calls per turn


class Turns(NamedTuple):
    """A schedule's calls in all of its turns.

    Attributes:
      seconds: time from the last arrival to the end, for each call. If ranks are delayed, calls in which the rank with
        the longest delay did not arrive last are left out.
      early_share: share of the work that was done before the last arrival, over all calls.
      calls: number of all calls.
    """

    seconds: list[float]
    early_share: float
    calls: int


def time_plans(
    plans: Mapping[str, Plan | None], delays: Mapping[int, float], nbytes: int, rounds: Iterable[object]
) -> dict[str, Turns]:
    """Measures the times of plans in turns, A B A B, with ranks late in every call.

    Args:
      plans: plans for the same number of ranks, by name. None instead of a plan runs the default schedule. At least one
        value must be a plan.
      delays: each late rank's delay in seconds; empty if no rank is late.
      nbytes: bytes of one rank's f32 buffer, rounded up to a multiple of 4.
      rounds: an iterable. Every plan has one turn per item. All processes need the same number of items.

    Raises:
      JaxcommError: the rank with the longest delay was never the last to arrive.
    """
    mesh = spmd.mesh(next(plan.ranks for plan in plans.values() if plan))
    count = -(-nbytes // 4)
    steps = {name: _step(mesh, delays, plan) for name, plan in plans.items()}
    values = {name: spmd.place(np.zeros((mesh.size, count), np.float32), mesh, spmd.SPLIT) for name in steps}
    permutes.require_core()
    found: dict[str, list[float]] = {name: [] for name in steps}
    early: dict[str, list[float]] = {name: [] for name in steps}
    for _ in rounds:
        for name, step in steps.items():
            values[name] = spmd.wait(step(values[name]))  # not timed, because another plan's buffers filled the caches
            ffi.reset_stats()
            for _ in range(CALLS):
                job.barrier()  # so that a process that ends a call early does not start its next delay early
                values[name] = spmd.wait(step(values[name]))
            site = psum_loop.recorded(CALLS)
            last = np.full(len(site["arrivals"]), True)
            if delays:
                last = np.argmax(site["arrivals"], axis=1) == max(delays, key=lambda rank: delays[rank])
            found[name] += np.array(site["after_arrival_s"])[last].tolist()
            early[name].append(site["early_bytes_share"])
    never = [name for name, seconds in found.items() if not seconds]
    if never:
        raise JaxcommError(
            f"rank {max(delays, key=lambda rank: delays[rank])} was never the last to arrive under {never[0]}, in "
            f"{len(early[never[0]]) * CALLS} calls.\n"
            "  Cure: make the rank later with --late, or end other programs on this machine"
        )
    return {
        name: Turns(seconds, statistics.mean(early[name]), CALLS * len(early[name])) for name, seconds in found.items()
    }


def measure(
    plans: Mapping[str, Plan], late: Late, nbytes: int, rounds: int, each_round: Callable[[], object]
) -> dict[str, Any]:
    """Measures the times of plans in turns, A B A B, with one late rank in every call; returns one row.

    Args:
      plans: the plans to measure, by name; all for the same number of ranks.
      late: the late rank.
      nbytes: bytes of one rank's f32 buffer, rounded up to a multiple of 4.
      rounds: number of turns of every plan.
      each_round: called after every round.

    Returns:
      For each plan, the seconds from the late rank's arrival to the end and their median. Calls in which another rank
      arrived last are left out.

    Raises:
      JaxcommError: the late rank was never the last to arrive.
    """

    def counted() -> Iterator[None]:
        for _ in range(rounds):
            yield
            each_round()

    timed = time_plans(plans, {late.rank: late.seconds}, nbytes, counted())
    rows = [
        {
            "schedule": name,
            "after_arrival_s": statistics.median(turns.seconds),
            "last": len(turns.seconds),
            "calls": turns.calls,
            "early_share": turns.early_share,
        }
        for name, turns in timed.items()
    ]
    times = {name: turns.seconds for name, turns in timed.items()}
    return {"bytes": 4 * -(-nbytes // 4), "late": late._asdict(), "schedules": rows, "times": times}


def single(name: str, ranks: int, late: Late) -> Plan:
    """A plan that runs one schedule for every size, such as `ring` or `straggler:14`.

    Raises:
      JaxcommError: no such rank or schedule.
    """
    if late.rank >= ranks:
        raise JaxcommError(
            f"--late names rank {late.rank}; with {ranks} devices the ranks are 0 to {ranks - 1}.\n"
            "  Cure: name one of them."
        )
    return timed.single(_spec(name, ranks), ranks, late.rank)


def _step(mesh: Mesh, delays: Mapping[int, float], plan: Plan | None) -> Callable[[Any], Any]:
    def body(x: jax.Array) -> Any:
        if delays:
            by_rank = jnp.array([delays.get(rank, 0.0) for rank in range(mesh.size)], jnp.float32)
            x = ffi.delay(x, by_rank[jax.lax.axis_index(spmd.AXIS)])
        return collectives.psum(x, spmd.AXIS, plan={} if plan is None else plan)

    mapped = jax.shard_map(body, mesh=mesh, in_specs=spmd.SPLIT, out_specs=spmd.SPLIT, check_vma=False)
    return jax.jit(mapped, donate_argnums=0)


def _spec(name: str, ranks: int) -> Spec:
    kind, _, chunks = name.partition(":")
    if kind in ("ring", "halving_doubling", "direct") and not chunks:
        return Plain.model_validate({"kind": kind})
    if kind == "broadcast" and not chunks:
        return Broadcast(late=ROLE)
    if kind == "straggler" and (_CHUNKS.fullmatch(chunks) or not chunks):
        return StragglerSpec(late=ROLE, chunks=int(chunks or 2 * (ranks - 1)))
    raise JaxcommError(
        f"--schedules has {name!r}.\n"
        "  Cure: use ring, halving_doubling, direct, broadcast, straggler, or straggler:14 for 14 chunks (at most 9999)"
    )
