"""Times schedules beside each other on the same executor, from a late rank's arrival to the end."""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxcomm import collectives, ffi, planner, schedules
from jaxcomm.cli import spmd
from jaxcomm.cli.values import Late
from jaxcomm.errors import JaxcommError
from jaxcomm.plan import Plan
from jaxcomm.plan.values import Broadcast, Plain, Spec, Straggler
from jaxcomm.profile import Link, Profile, Provenance

_CALLS = 10  # of one turn; the first is not counted, as the other side's buffers then fill the caches
_ROLE = "straggler"


def measure(args: Namespace, nbytes: int, each_round: Callable[[], object]) -> dict[str, Any]:
    """One row: every schedule in turn, A B A B, each call with the late rank late.

    Args:
      args: the command's `devices`, `rounds`, `late` and `schedules`.
      nbytes: bytes of one rank's f32 buffer, rounded up to whole numbers.
      each_round: called after every round.

    Returns:
      For each schedule the median seconds from the late rank's arrival to the end, over the calls in which it was last.
    """
    if args.late.rank >= args.devices or not args.late.seconds:
        raise JaxcommError(
            f"--late names rank {args.late.rank}, {args.late.seconds * 1e3:g} ms late, of {args.devices} ranks"
        )
    mesh, count = spmd.mesh(args.devices), -(-nbytes // 4)
    steps = {name: _step(mesh, args.late, _plan(name, args.devices, args.late)) for name in args.schedules}
    values = {name: spmd.place(np.zeros((args.devices, count), np.float32), mesh, spmd.SPLIT) for name in steps}
    found: dict[str, list[float]] = {name: [] for name in steps}
    calls, early = dict.fromkeys(steps, 0), dict.fromkeys(steps, 0.0)
    for _ in range(args.rounds):
        for name, step in steps.items():
            values[name] = spmd.wait(step(values[name]))
            ffi.reset_stats()
            for _ in range(_CALLS):
                values[name] = spmd.wait(step(values[name]))
            [site] = [site for site in ffi.stats() if site["calls"]]
            last = np.argmax(site["arrivals"], axis=1) == args.late.rank
            found[name] += np.array(site["after_arrival_s"])[last].tolist()
            calls[name] += _CALLS
            early[name] += site["early_bytes_share"] / args.rounds
        each_round()
    never = [name for name, seconds in found.items() if not seconds]
    if never:
        raise JaxcommError(
            f"rank {args.late.rank} was never the last to arrive under {never[0]}, in {calls[never[0]]} calls.\n"
            "  Cure: make it later with --late, or leave the machine to this command."
        )
    rows = [
        {
            "schedule": name,
            "after_arrival_s": statistics.median(seconds),
            "last": len(seconds),
            "calls": calls[name],
            "early_share": early[name],
        }
        for name, seconds in found.items()
    ]
    return {"bytes": 4 * count, "late": args.late._asdict(), "schedules": rows}


def _step(mesh: Mesh, late: Late, plan: Plan) -> Callable[[Any], Any]:
    def body(x: jax.Array) -> Any:
        seconds = jnp.where(jax.lax.axis_index(spmd.AXIS) == late.rank, late.seconds, 0.0)
        return collectives.psum(ffi.delay(x, seconds), spmd.AXIS, plan=plan)

    mapped = jax.shard_map(body, mesh=mesh, in_specs=spmd.SPLIT, out_specs=spmd.SPLIT, check_vma=False)
    return jax.jit(mapped, donate_argnums=0)


def _plan(name: str, ranks: int, late: Late) -> Plan:
    """A plan that runs one schedule for every size.

    Everything else in it is what the planner says about a made-up profile; nothing here reads that.
    """
    profile = Profile(
        ranks=ranks,
        link=Link(alpha_s=1e-6, beta_s_per_byte=1e-10, source="assumed"),
        arrivals=[[late.seconds * (rank == late.rank) for rank in range(ranks)]],
        provenance=Provenance(source="assumed", tool="jaxcomm bench"),
    )
    spec = _spec(name, ranks)
    made = planner.plan(profile)
    entry = made.collectives[-1].model_copy(update={"min_bytes": 0, "max_bytes": None, "schedule": spec})
    template = schedules.template(ranks).to_json() if isinstance(spec, Straggler) else None
    fields = {"collectives": (entry,), "template": template}
    return Plan.model_validate({**made.model_dump(exclude={"hash"}), **fields})


def _spec(name: str, ranks: int) -> Spec:
    kind, _, chunks = name.partition(":")
    if kind in ("ring", "halving_doubling", "direct") and not chunks:
        return Plain.model_validate({"kind": kind})
    if kind == "broadcast" and not chunks:
        return Broadcast(late=_ROLE)
    if kind == "straggler" and (chunks.isdigit() or not chunks):
        return Straggler(late=_ROLE, chunks=int(chunks or 2 * (ranks - 1)))
    raise JaxcommError(
        f"--schedules has {name!r}.\n"
        "  Cure: use ring, halving_doubling, direct, broadcast, straggler, or straggler:14 for 14 chunks"
    )
