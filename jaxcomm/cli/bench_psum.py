"""Compares jaxcomm's collectives with another library's by time, and psum also with the memory-bandwidth floor."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxcomm import collectives, ffi
from jaxcomm.cli import bench_peers
from jaxcomm.cli.bench_peers import Body, Peer
from jaxcomm.cli.common import job, spmd
from jaxcomm.cli.common.timing import Side, take_turns
from jaxcomm.plan import Plan
from jaxcomm.schedules.schedule import CollectiveKind

Step = Callable[[list[jax.Array]], list[jax.Array]]

SMALL = 1024  # bytes of each call, if one jit has several calls


def measure(
    peer: Peer,
    collective: CollectiveKind,
    ranks: int,
    plan: Plan | None,
    nbytes: int,
    calls: int,
    rounds: int,
    each_round: Callable[[], object],
) -> dict[str, Any]:
    """Measures `calls` independent collectives of `nbytes` bytes in one jit. jaxcomm and the peer take turns.

    Args:
      peer: the library to compare with.
      collective: the kind of collective.
      ranks: number of devices.
      plan: the plan that jaxcomm runs; None: the default schedule.
      nbytes: bytes of the whole f32 buffer, rounded up to whole elements. If the collective splits the buffer among the
        ranks, `nbytes` is rounded up to equal parts.
      calls: number of collectives.
      rounds: number of turns of each side.
      each_round: called after every round.

    Returns:
      A row. For each side, the median seconds over all calls and over each turn; the ratio of the peer's to jaxcomm's
      seconds; bandwidths; the floor (psum only); and the number of elements that differ from the peer's results for
      integer inputs.

    Raises:
      JaxcommError: the peer is not available here.
    """
    whole = collective == "all_reduce"
    count, mesh = -(-nbytes // 4) if whole else -(-nbytes // (4 * ranks)) * ranks, spmd.mesh(ranks)
    own = count // ranks if collective == "all_gather" else count  # elements of a rank's operand
    bodies: dict[CollectiveKind, Body] = {
        "all_reduce": lambda x: collectives.psum(x, spmd.AXIS, plan=plan),
        "reduce_scatter": lambda x: collectives.psum_scatter(x[0], spmd.AXIS, tiled=True, plan=plan)[None],
        "all_gather": lambda x: collectives.all_gather(x[0], spmd.AXIS, tiled=True, plan=plan)[None],
    }
    by_us = _mapped(mesh, bodies[collective])
    integers = [_integers(mesh, own, calls) for _ in range(2)]
    zeros = spmd.place(np.zeros((mesh.size, own), np.float32), mesh, spmd.SPLIT)
    its, its_side = _peer(peer, collective, mesh, integers.pop(), [zeros] * calls)
    wrong = sum(
        int((spmd.here(ours) != theirs).sum()) for ours, theirs in zip(jax.jit(by_us)(integers.pop()), its, strict=True)
    )
    del its
    sides = {peer: its_side, "jaxcomm": _side(by_us, [zeros] * calls, whole)}
    floors: list[float] = []

    def after_round() -> None:
        floors.append(calls * ffi.floor_seconds(ranks, 4 * count) if whole else 0.0)
        each_round()

    turns = take_turns(sides, rounds, after_round)
    seconds = {name: statistics.median(itertools.chain(*found)) for name, found in turns.items()}
    floor, rate = statistics.median(floors), calls * 4 * count / seconds["jaxcomm"] / 1e9
    return {
        "bytes": 4 * count,
        "calls": calls,
        "schedule": _kind(collective, plan, 4 * count),
        "peer_s": seconds[peer],
        "jaxcomm_s": seconds["jaxcomm"],
        "times": {name: [statistics.median(turn) for turn in found] for name, found in turns.items()},
        "ratio": seconds[peer] / seconds["jaxcomm"],
        "gb_per_s": rate,
        "bus_gb_per_s": rate * (1 + whole) * (ranks - 1) / ranks,
        "floor_s": floor if whole else None,
        "over_floor": seconds["jaxcomm"] / floor if whole else None,
        "wrong": round(job.total(wrong)),
    }


def _kind(collective: CollectiveKind, plan: Plan | None, nbytes: int) -> str:
    """The name of the schedule that jaxcomm runs."""
    found = None
    if plan and collective == "all_reduce":
        found = plan.schedule_for(nbytes, "float32")
    elif plan and collective != "all_reduce" and jax.process_count() > 1:
        found = plan.half_for(collective, nbytes, "float32")
    return found.kind if found else "default"


def _peer(
    peer: Peer, collective: CollectiveKind, mesh: Mesh, integers: list[jax.Array], zeros: list[jax.Array]
) -> tuple[list[np.ndarray[Any, Any]], Side]:
    """Returns this process's part of the peer's results for the integer inputs, and the peer's `Side` for timing."""
    whole = collective == "all_reduce"
    if peer == "mpi4py":
        on_host = bench_peers.by_mpi4py(collective)
        sums = [own for own, _ in on_host([bench_peers.buffers(value) for value in integers])]
        return sums, Side(on_host, [bench_peers.buffers(value) for value in zeros])
    if peer == "mpi":
        by_peer = _each(bench_peers.by_mpi(collective))
        integers, zeros = ([bench_peers.row(value) for value in values] for values in (integers, zeros))
    else:
        by_peer = _mapped(mesh, bench_peers.by_lax(collective))
    return [spmd.here(value) for value in jax.jit(by_peer)(integers)], _side(by_peer, zeros, whole)


def _side(mapped: Step, zeros: list[jax.Array], whole: bool) -> Side:
    """The side that runs `mapped`, starting from zeros.

    If `whole`, the outputs have the inputs' sizes and become the next inputs. Otherwise the side keeps its inputs and
    donates its last outputs.
    """
    start = [jnp.copy(value) for value in zeros]
    if whole:
        return Side(jax.jit(mapped, donate_argnums=0), start)
    beside = jax.jit(lambda values: (values[0], mapped(values[0])), donate_argnums=0, keep_unused=True)
    return Side(beside, (start, jax.jit(mapped)(start)))


def _each(body: Body) -> Step:
    return lambda values: [body(value) for value in values]


def _mapped(mesh: Mesh, body: Body) -> Step:
    mapped: Step = jax.shard_map(_each(body), mesh=mesh, in_specs=spmd.SPLIT, out_specs=spmd.SPLIT, check_vma=False)
    return mapped


def _integers(mesh: Mesh, count: int, calls: int) -> list[jax.Array]:
    values = np.random.default_rng(0).integers(-8, 8, (mesh.size, count)).astype(np.float32)
    return [spmd.place(values + call, mesh, spmd.SPLIT) for call in range(calls)]
