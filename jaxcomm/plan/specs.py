"""From a spec, which names a schedule in a plan file, to the schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxcomm import schedules
from jaxcomm.plan.values import (
    Broadcast,
    Chain,
    Hybrid,
    Nccl,
    Plain,
    Solved,
    Spec,
    Stragglers,
    StragglerSpec,
    Transfers,
)
from jaxcomm.schedules import Schedule, Template


def build(
    spec: Spec,
    ranks: int,
    roles: Mapping[str, int],
    template: Template | None,
    solved: Sequence[Solved] = (),
) -> Schedule:
    """The schedule that a spec stands for.

    Args:
      spec: the spec.
      ranks: number of ranks.
      roles: the rank of every role.
      template: the rotational template for these ranks; None finds it anew where one is needed.
      solved: the schedules of the plan's network.

    Raises:
      ValueError: a solved schedule names a rank, chunk or round that does not exist.
    """
    match spec:
        case Nccl():
            return build(Plain(kind=spec.otherwise), ranks, roles, template)
        case Plain(kind="ring"):
            return schedules.ring(ranks)
        case Plain(kind="halving_doubling"):
            return schedules.halving_doubling(ranks)
        case Plain():
            return schedules.direct(ranks)
        case Broadcast():
            return schedules.broadcast(ranks, roles[spec.late])
        case StragglerSpec():
            return schedules.straggler(ranks, roles[spec.late], spec.chunks, template)
        case Hybrid():
            return schedules.hybrid(ranks, roles[spec.late], spec.chunks, spec.covered, template)
        case Stragglers():
            return schedules.stragglers(ranks, [roles[name] for name in spec.late], spec.chunks)
        case Chain():
            return schedules.chain(ranks, [roles[name] for name in spec.late], spec.chunks, template)
        case Transfers():
            chosen = solved[spec.index]
            return schedules.transfers(ranks, chosen.late, chosen.owners, chosen.moves)
