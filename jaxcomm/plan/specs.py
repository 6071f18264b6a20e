"""Builds schedules from the specs in a plan file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxcomm import schedules
from jaxcomm.plan.halves import HalfSpec
from jaxcomm.plan.solved import SolvedCall
from jaxcomm.plan.values import (
    Broadcast,
    Chain,
    DirectJoin,
    HalvingDoubling,
    Hierarchical,
    HierarchicalHalves,
    Hybrid,
    LateJoin,
    Nccl,
    Plain,
    Spec,
    Stragglers,
    StragglerSpec,
    Transfers,
)
from jaxcomm.profile.cluster import Topology
from jaxcomm.schedules import HostLinks, Schedule, Template
from jaxcomm.schedules.halves import Half


def build(
    spec: Spec,
    ranks: int,
    roles: Mapping[str, int],
    template: Template | None,
    solved: Sequence[SolvedCall] = (),
    topology: Topology | None = None,
) -> Schedule:
    """The schedule that a spec stands for.

    Args:
      spec: the spec.
      ranks: number of ranks.
      roles: the rank of every role.
      template: the rotational template for these ranks; None: a template is searched for if the schedule needs one.
      solved: the schedules that were solved for the plan's network.
      topology: the plan's network, which schedules for hosts need.

    Raises:
      ValueError: a solved schedule names a rank, chunk or round that does not exist.

    Example:
      >>> plan = jaxcomm.plan.load("plan.json")
      >>> jaxcomm.plan.build(plan.collectives[0].schedule, plan.ranks, plan.roles, plan.template).ranks
      8
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
        case HalvingDoubling():
            assert topology
            return schedules.halving_doubling(ranks, schedules.orders_by_host(topology.hosts)[spec.order])
        case Hierarchical():
            assert topology
            late = [roles[name] for name in spec.late]
            return schedules.hierarchical(links_of(topology), spec.chunks, late, spec.within, spec.across)
        case HierarchicalHalves():
            assert topology
            return schedules.hierarchical_halves(links_of(topology))
        case DirectJoin():
            return schedules.direct_join(ranks, roles[spec.late], spec.chunks)
        case LateJoin():
            return schedules.late_join(ranks, roles[spec.late], spec.chunks)
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
            return build_solved(solved[spec.index], ranks)


def links_of(topology: Topology) -> HostLinks:
    """The links of a topology, in the form that the constructors of schedules take."""
    return HostLinks.of(topology.hosts, topology.nic, topology.slow, topology.racks, topology.nics, topology.uplinks)


def build_solved(chosen: SolvedCall, ranks: int) -> Schedule:
    """The solved schedule. Raises ValueError if the schedule names a rank, chunk or round that does not exist."""
    return schedules.listed(ranks, chosen.late, chosen.chunks, chosen.before, chosen.after)


def build_half(spec: HalfSpec, collective: Half, ranks: int, topology: Topology | None = None) -> Schedule:
    """The reduce-scatter or the all-gather that a spec stands for; other arguments are as in `build`."""
    if isinstance(spec, Hierarchical):
        assert topology
        return schedules.hierarchical_half(collective, links_of(topology))
    return schedules.half(collective, build(spec, ranks, {}, None, (), topology))
