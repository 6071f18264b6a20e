"""Predicted times over ranks, sizes and delays: the straggler family, or a plan, against the usual schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from jaxcomm import schedules
from jaxcomm.plan import Plan
from jaxcomm.schedules import Schedule
from jaxcomm.simulate import tune
from jaxcomm.simulate.cost import PORTS, Delays, lower_bound, seconds
from jaxcomm.topology import Topology


@dataclass(frozen=True)
class Row:
    """Seconds from the late rank's arrival to the end, for one number of ranks, size and delay.

    `straggler` is the best of the straggler family for this very delay, cut into `chunks` of which `covered` follow the
    straggler schedule. `direct` is None where it needs more ports than there are, `plan` where the plan is for other
    ranks.
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
    alpha: float,
    beta: float,
    *,
    plan: Plan | None = None,
    ports: int = PORTS,
    topology: Topology | None = None,
) -> Iterator[Row]:
    """One row per number of ranks, size and delay, in this order, each computed when it is asked for.

    Args:
      ranks: numbers of ranks.
      sizes: bytes of the buffer.
      delays: seconds that the late rank is late.
      alpha: seconds per round.
      beta: seconds per byte.
      plan: a plan to predict as well.
      ports: peers that a rank can exchange with at once.
      topology: what differs between the links of as many ranks as it has; by default nothing does.
    """
    for n in ranks:
        where = topology if topology and len(topology.hosts) == n else None
        for nbytes, delay in product(sizes, delays):
            late = Delays([delay])

            def takes(schedule: Schedule, link: tuple[Any, ...] = (nbytes, late, alpha, beta, where)) -> float:
                return seconds(schedule, *link)

            best = tune.best(n, nbytes, late, alpha, beta)
            planned = plan.schedule_for(nbytes) if plan and plan.ranks == n else None
            yield Row(
                ranks=n,
                nbytes=nbytes,
                delay_s=delay,
                ring=takes(schedules.ring(n)),
                halving_doubling=takes(schedules.halving_doubling(n)),
                direct=takes(schedules.direct(n)) if n - 1 <= ports else None,
                broadcast=takes(schedules.broadcast(n, 0)),
                straggler=takes(schedules.hybrid(n, 0, best.chunks, best.covered)) if where else best.seconds,
                chunks=best.chunks,
                covered=best.covered,
                lower_bound=lower_bound(n, nbytes, late, alpha, beta, ports, where),
                plan=takes(planned) if planned else None,
                plan_kind=planned.kind if planned else None,
            )
