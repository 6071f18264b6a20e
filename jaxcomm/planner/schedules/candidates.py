"""The schedules that one call of a given size could run, and the choice among them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxcomm import simulate
from jaxcomm.plan.timed import timed_spec
from jaxcomm.plan.values import (
    Broadcast,
    Chain,
    DirectJoin,
    Hybrid,
    Nccl,
    Plain,
    Spec,
    Stragglers,
    StragglerSpec,
    Transfers,
)
from jaxcomm.planner.late_ranks import ROLE
from jaxcomm.planner.schedules import on_hosts
from jaxcomm.planner.schedules.setting import Setting, spec_of
from jaxcomm.profile.cluster import SOLVED
from jaxcomm.simulate import Tuned


def choose(setting: Setting, nbytes: int) -> Spec:
    """The fastest schedule for calls of this size.

    One that uses the delay must gain `min_gain` to be taken, and one for several late ranks as much over the best then.
    """
    choice: Spec = plain(setting, nbytes)
    for offers in (late_specs, late_sets):
        if rivals := offers(setting, nbytes, setting.seconds(choice, nbytes)):
            worthwhile = [spec for spec in rivals if setting.gains(spec, choice, nbytes)]
            choice = min(worthwhile, key=lambda spec: setting.seconds(spec, nbytes), default=choice)
    return choice


def plain(setting: Setting, nbytes: int) -> Spec:
    """The fastest of what cannot use a delay: a schedule, or NCCL's own allreduce."""
    if setting.timed:
        return plain_timed(setting, nbytes)
    usual = plain_schedule(setting, nbytes)
    offers = [usual, *host_specs(setting, nbytes, setting.seconds(usual, nbytes))]
    best = min(offers, key=lambda spec: setting.seconds(spec, nbytes))
    if setting.nccl_seconds(nbytes) < setting.seconds(best, nbytes):
        return Nccl.model_validate({"otherwise": usual.kind})
    return best


def plain_timed(setting: Setting, nbytes: int) -> Spec:
    """The default schedule, or another one that cannot use a delay, if that saves enough by its timed calls.

    On XLA's collectives that is `lax.psum`. On the core, between hosts, it is the faster of direct and ring: which of
    them runs depends on the bytes.
    """
    hosts = len({*setting.links.topology.hosts}) if setting.links.topology else setting.hosts
    kinds = ("lax",) if setting.runs_by_xla else ("direct", "ring") if hosts > 1 else ("direct",)
    usual = [spec_of(Plain, kind=kind) for kind in kinds]
    choice: Spec = min(usual, key=lambda spec: setting.seconds(spec, nbytes))
    offers = [spec for spec in timed_specs(setting) if not setting.schedule(spec).precondition]
    offers += host_specs(setting, nbytes, setting.seconds(choice, nbytes))
    worthwhile = [spec for spec in offers if setting.gains(spec, choice, nbytes)]
    return min(worthwhile, key=lambda spec: setting.seconds(spec, nbytes), default=choice)


def host_specs(setting: Setting, nbytes: int, limit: float = math.inf) -> list[Spec]:
    """The best of every kind that is made for hosts and cannot use a delay, as far as it may take less than `limit`."""
    call = setting, nbytes, limit
    return [*on_hosts.halving_doubling_specs(*call), *on_hosts.hierarchical_specs(*call), *on_hosts.halves_specs(*call)]


def plain_schedule(setting: Setting, nbytes: int) -> Plain:
    """The fastest of the schedules that know no hosts and cannot use a delay."""
    specs = [spec_of(Plain, kind=kind) for kind in ("direct", "ring", "halving_doubling")]
    allowed = [spec for spec in specs if not too_many_ports(setting, spec)]
    return min(allowed, key=lambda spec: setting.seconds(spec, nbytes))


def call_lower_bound(setting: Setting, nbytes: int) -> float:
    """Mean seconds that no schedule of ours can beat, nor NCCL: its switches may add, which no rank's port bounds."""
    return min(setting.lower_bound(nbytes), setting.nccl_seconds(nbytes))


def late_specs(setting: Setting, nbytes: int, limit: float = math.inf) -> list[Spec]:
    """The best of every kind that uses the delay of the late rank; empty if nobody is known to be late.

    Where links differ, kinds that take `limit` seconds or longer may be left out. Chunks and coverage are tuned for
    links that are alike; where they differ, the schedules that were solved for them take that place.
    """
    if not setting.late.roles:
        return []
    if setting.timed:
        timed = [each for each in timed_specs(setting) if setting.schedule(each).precondition]
        return [*timed, *(_late_on_hosts(setting, nbytes, timed, limit) if setting.links.topology else [])]
    if setting.links.topology:
        return _late_on_hosts(setting, nbytes, [spec_of(Broadcast, late=ROLE)], limit)
    call = setting.ranks, nbytes, setting.late.delays, setting.links.alpha, setting.links.beta
    members = simulate.tuned_straggler(*call), simulate.tuned_hybrid(*call)
    specs: list[Spec] = [spec_of(Broadcast, late=ROLE), *(tuned_spec(member) for member in members if member)]
    return [*specs, *direct_joins(setting, nbytes, specs)]


def _late_on_hosts(setting: Setting, nbytes: int, own: Sequence[Spec], limit: float) -> list[Spec]:
    """The best of every kind whose time follows from the links of hosts, beside `own`."""
    solved = [
        spec_of(Transfers, late=ROLE, chunks=found.chunks, index=index) for index, found in enumerate(setting.solved)
    ]
    counts = dict.fromkeys(multiple * (setting.ranks - 1) for multiple in _multiples(setting, nbytes))
    flat = [spec_of(StragglerSpec, late=ROLE, chunks=chunks) for chunks in counts]
    usual = [
        *on_hosts.fastest(setting, own, nbytes, limit),
        *on_hosts.fastest(setting, flat, nbytes, limit),
        *on_hosts.late_hierarchical_specs(setting, nbytes, limit),
    ]
    return [*usual, *direct_joins(setting, nbytes, [*usual, *solved], limit), *solved]


def timed_specs(setting: Setting) -> list[Spec]:
    """The schedules that were timed whole on the ranks' executor; empty if none were."""
    return [timed_spec(each.kind, each.chunks) for each in (setting.timed.timed.schedules if setting.timed else ())]


def direct_joins(setting: Setting, nbytes: int, rivals: Sequence[Spec], limit: float = math.inf) -> list[Spec]:
    """The best direct join: the late rank exchanges with all others at once, if a rank has that many ports. As it asks
    more of the network, it must save `min_gain` of the others' least time, at most `limit`."""
    others = setting.ranks - 1
    if others > setting.ports or others < 2:  # of two ranks it is the straggler schedule
        return []
    counts = [multiple * others for multiple in _multiples(setting, nbytes)]
    specs: list[Spec] = [spec_of(DirectJoin, late=ROLE, chunks=chunks) for chunks in counts]
    if setting.links.topology:
        specs = on_hosts.fastest(setting, specs, nbytes, limit)
    else:
        specs = [min(specs, key=lambda spec: setting.seconds(spec, nbytes))]
    least = min([limit, *(setting.seconds(spec, nbytes) for spec in rivals)])
    return [spec for spec in specs if setting.seconds(spec, nbytes) < (1 - setting.min_gain) * least]


def _multiples(setting: Setting, nbytes: int) -> list[int]:
    """1, 2, 4, ..., as often as the buffer may be cut; where every message must be timed, at most 8."""
    most = simulate.tune.max_chunks(setting.ranks, nbytes) // (setting.ranks - 1)
    most = min(most, 1 if setting.ranks > SOLVED else 8) if setting.links.topology else most
    return [1 << exponent for exponent in range(max(1, most.bit_length()))]


def late_sets(setting: Setting, nbytes: int, limit: float = math.inf) -> list[Spec]:
    """The best of every kind for the last two late ranks, the last three, ...; empty if at most one is late.

    Chunk counts are 1, 2, 4, ... times those with which every rank has as much to do, and where links
    differ, so that every transfer must be timed, at most 4 times those; there, kinds that take `limit` seconds or
    longer may be left out.
    """
    specs: list[Spec] = []
    order, most = setting.late.order, simulate.tune.max_chunks(setting.ranks, nbytes)
    for count in range(2, len(order) + 1):
        late = order[-count:]
        kinds: list[tuple[type[Stragglers | Chain], int]] = [(Stragglers, setting.ranks), (Chain, setting.ranks - 1)]
        for kind, period in kinds:
            times = max(1, min(most // period, 4 if setting.links.topology else most)).bit_length()
            members: list[Spec] = [spec_of(kind, late=late, chunks=period << exponent) for exponent in range(times)]
            if setting.links.topology:
                specs += on_hosts.fastest(setting, members, nbytes, limit)
            else:
                specs.append(min(members, key=lambda spec: setting.seconds(spec, nbytes)))
        specs += on_hosts.late_set_specs(setting, nbytes, late, limit)
    return specs


def tuned_spec(member: Tuned) -> Spec:
    """The spec of a tuned member of the straggler family."""
    if member.covered == member.chunks:
        return spec_of(StragglerSpec, late=ROLE, chunks=member.chunks)
    return spec_of(Hybrid, late=ROLE, chunks=member.chunks, covered=member.covered)


def too_many_ports(setting: Setting, spec: Spec) -> bool:
    """Whether a schedule needs more peers at once than a rank has ports for."""
    return spec.kind == "direct" and setting.ranks - 1 > setting.ports
