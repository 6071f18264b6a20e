"""Predicted times over ranks, sizes and delays: the straggler family, or a plan, against the usual schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from jaxcomm import schedules
from jaxcomm.plan import Plan
from jaxcomm.profile.cluster import Cluster
from jaxcomm.schedules import Schedule
from jaxcomm.simulate import tune
from jaxcomm.simulate.closed_form import PORTS, Delays, lower_bound, seconds
from jaxcomm.simulate.incast import link_of


@dataclass(frozen=True)
class SweepRow:
    """Seconds from the late rank's arrival to the end, for one number of ranks, size and delay.

    `straggler` is the time of the best member of the straggler family for exactly this delay. This member has `chunks`
    chunks, of which the first `covered` follow the straggler schedule. `direct` is None if the direct schedule needs
    more ports than a rank has. `plan` is None without a plan for this number of ranks. If the plan runs NCCL's
    own allreduce, `plan` is the measured time of that allreduce.
    """

    ranks: int
    nbytes: int
    delay_s: float
    ring: float
    halving_doubling: float
    direct: float | None
    broadcast: float
    straggler: float
    chunks: int
    covered: int
    lower_bound: float
    plan: float | None
    plan_kind: str | None


def sweep(
    ranks: Sequence[int],
    sizes: Sequence[int],
    delays: Sequence[float],
    cluster: Cluster,
    *,
    plan: Plan | None = None,
    ports: int = PORTS,
) -> Iterator[SweepRow]:
    """One row per number of ranks, size and delay, in this order, computed lazily.

    Args:
      ranks: numbers of ranks.
      sizes: bytes of the buffer.
      delays: seconds that the late rank is late.
      cluster: the links. The topology is used only for its own number of ranks.
      plan: a plan to predict as well.
      ports: peers that a rank can exchange with at once.
    """
    alpha, beta, topology = cluster.alpha, cluster.beta, cluster.topology
    for n in ranks:
        where = topology if topology and len(topology.hosts) == n else None
        links = Cluster(alpha, beta, where, incast=cluster.incast)
        ring, halving_doubling = schedules.ring(n), schedules.halving_doubling(n)
        direct = schedules.direct(n) if n - 1 <= ports else None
        broadcast = schedules.broadcast(n, 0)
        for nbytes, delay in product(sizes, delays):
            late = Delays([delay])

            def predict(schedule: Schedule, nbytes: int = nbytes, late: Delays = late, links: Cluster = links) -> float:
                return seconds(schedule, nbytes, late, *link_of(schedule, nbytes, links))

            best = tune.best(n, nbytes, late, alpha, beta)
            planned = _planned(plan, nbytes, delay) if plan and plan.ranks == n else None
            nccl = plan.nccl_seconds(nbytes) if plan and planned else None
            straggler = schedules.hybrid(n, 0, best.chunks, best.covered) if where else None
            yield SweepRow(
                ranks=n,
                nbytes=nbytes,
                delay_s=delay,
                ring=predict(ring),
                halving_doubling=predict(halving_doubling),
                direct=predict(direct) if direct else None,
                broadcast=predict(broadcast),
                straggler=predict(straggler) if straggler else best.seconds,
                chunks=best.chunks,
                covered=best.covered,
                lower_bound=lower_bound(n, nbytes, late, alpha, beta, ports, where),
                plan=nccl if nccl is not None else predict(planned) if planned else None,
                plan_kind="nccl" if nccl is not None else planned.kind if planned else None,
            )


def _planned(plan: Plan, nbytes: int, delay: float) -> Schedule | None:
    """The schedule that a plan's calls run if the late rank is always late by `delay` seconds."""
    if selector := plan.selector_for(nbytes):
        return plan.schedules_of(selector)[0 if delay < selector.lateness_s else -1]
    return plan.schedule_for(nbytes)
