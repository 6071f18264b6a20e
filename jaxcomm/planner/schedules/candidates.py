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
    """The schedule that calls of this size should run.

    If a run has tried schedules for calls of about this size and kept some, the fastest of these is chosen. Otherwise
    the fastest schedule is chosen. But a schedule that uses the delay is chosen only if it saves at least the share
    `min_gain` of the time of the best schedule that uses no delay, and a schedule for several late ranks only if it
    saves this share of the best time so far.
    """
    kept = [spec for spec in setting.tried if (trial := setting.trial(spec, nbytes)) and trial.is_kept]
    if kept:
        return min(kept, key=lambda spec: setting.seconds(spec, nbytes))
    choice: Spec = plain(setting, nbytes)
    for offers in (late_specs, late_sets):
        if rivals := offers(setting, nbytes, setting.seconds(choice, nbytes)):
            worthwhile = [spec for spec in rivals if setting.gains(spec, choice, nbytes)]
            choice = min(worthwhile, key=lambda spec: setting.seconds(spec, nbytes), default=choice)
    return choice


def plain(setting: Setting, nbytes: int) -> Spec:
    """The fastest schedule that uses no delay, or NCCL's own allreduce if it is faster."""
    if setting.timed:
        return plain_timed(setting, nbytes)
    usual = plain_schedule(setting, nbytes)
    offers = [usual, *host_specs(setting, nbytes, setting.seconds(usual, nbytes))]
    offers += tried_specs(setting, nbytes, has_late=False)
    best = min(offers, key=lambda spec: setting.seconds(spec, nbytes))
    if setting.nccl_seconds(nbytes) < setting.seconds(best, nbytes):
        return Nccl.model_validate({"otherwise": usual.kind})
    return best


def plain_timed(setting: Setting, nbytes: int) -> Spec:
    """The default schedule, or another schedule that uses no delay and saves enough according to its timed calls.

    On XLA's collectives the default is `lax.psum`. On our own executors it is direct or, between hosts, the faster of
    direct and ring for this size.
    """
    choice = min(setting.defaults, key=lambda spec: setting.seconds(spec, nbytes))
    offers = [spec for spec in timed_specs(setting) if not setting.schedule(spec).precondition]
    offers += host_specs(setting, nbytes, setting.seconds(choice, nbytes))
    offers += tried_specs(setting, nbytes, has_late=False)
    worthwhile = [spec for spec in offers if setting.gains(spec, choice, nbytes)]
    return min(worthwhile, key=lambda spec: setting.seconds(spec, nbytes), default=choice)


def host_specs(setting: Setting, nbytes: int, limit: float = math.inf) -> list[Spec]:
    """For each kind of schedule for hosts, the best one that uses no delay, if it takes less than `limit`."""
    call = setting, nbytes, limit
    return [*on_hosts.halving_doubling_specs(*call), *on_hosts.hierarchical_specs(*call), *on_hosts.halves_specs(*call)]


def plain_schedule(setting: Setting, nbytes: int) -> Plain:
    """The fastest of the schedules that ignore hosts and delays."""
    specs = [spec_of(Plain, kind=kind) for kind in ("direct", "ring", "halving_doubling")]
    allowed = [spec for spec in specs if not too_many_ports(setting, spec)]
    return min(allowed, key=lambda spec: setting.seconds(spec, nbytes))


def call_lower_bound(setting: Setting, nbytes: int) -> float:
    """Mean seconds that neither our schedules nor NCCL can beat.

    The number of ports does not bound NCCL's time, because network switches may sum for NCCL.
    """
    return min(setting.lower_bound(nbytes), setting.nccl_seconds(nbytes))


def late_specs(setting: Setting, nbytes: int, limit: float = math.inf) -> list[Spec]:
    """The best schedule of each kind that uses the late rank's delay; empty if no rank is known to be late.

    If all links have the same rate, the numbers of chunks and of covered chunks are tuned for them. If links differ,
    the schedules that were solved for them are offered instead, and kinds that take `limit` seconds or longer may be
    left out.
    """
    if not setting.late.roles:
        return []
    tried = tried_specs(setting, nbytes, has_late=True)
    if setting.timed:
        timed = [each for each in timed_specs(setting) if setting.schedule(each).precondition]
        return [*tried, *timed, *(_late_on_hosts(setting, nbytes, timed, limit) if setting.links.topology else [])]
    if setting.links.topology:
        return [*tried, *_late_on_hosts(setting, nbytes, [spec_of(Broadcast, late=ROLE)], limit)]
    call = setting.ranks, nbytes, setting.late.delays, setting.links.alpha, setting.links.beta
    members = simulate.tuned_straggler(*call), simulate.tuned_hybrid(*call)
    specs: list[Spec] = [spec_of(Broadcast, late=ROLE), *(tuned_spec(member) for member in members if member)]
    return [*tried, *specs, *direct_joins(setting, nbytes, specs)]


def _late_on_hosts(setting: Setting, nbytes: int, own: Sequence[Spec], limit: float) -> list[Spec]:
    """The best of `own`, the best schedule of each other kind, and all solved schedules, for the hosts' links."""
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
    """The schedules whose whole calls were timed on the ranks' executor; empty if no schedules were timed."""
    return [timed_spec(each.name) for each in (setting.timed.timed.schedules if setting.timed else ())]


def tried_specs(setting: Setting, nbytes: int, *, has_late: bool) -> list[Spec]:
    """The schedules that a run has tried for calls of about this size.

    With `has_late`, these are the schedules that use a delay. Otherwise they are the schedules that use no delay.
    """
    tried = [spec for spec in setting.tried if setting.trial(spec, nbytes)]
    return [spec for spec in tried if (setting.schedule(spec).precondition is not None) == has_late]


def direct_joins(setting: Setting, nbytes: int, rivals: Sequence[Spec], limit: float = math.inf) -> list[Spec]:
    """The best direct join, in which the late rank exchanges with all others at once, if a rank has enough ports.

    A direct join uses more ports at once than other schedules. It must therefore save `min_gain` of the least time of
    `rivals`, or of `limit` if `limit` is less.
    """
    others = setting.ranks - 1
    if others > setting.ports or others < 2:  # with two ranks, a direct join equals the straggler schedule
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
    """The factors 1, 2, 4, … for which the buffer can be cut into factor · (n - 1) chunks; n is the number of ranks.

    With a topology every message is simulated, which is slow. The largest factor is then 8, or 1 for more than `SOLVED`
    ranks.
    """
    most = simulate.tune.max_chunks(setting.ranks, nbytes) // (setting.ranks - 1)
    most = min(most, 1 if setting.ranks > SOLVED else 8) if setting.links.topology else most
    return [1 << exponent for exponent in range(max(1, most.bit_length()))]


def late_sets(setting: Setting, nbytes: int, limit: float = math.inf) -> list[Spec]:
    """The best schedule of each kind for the last two late ranks, the last three, …; empty if at most one is late.

    Chunk counts are 1, 2, 4, … times the least count that loads all ranks equally. If links differ, every transfer is
    simulated, which is slow. The largest factor is then 4, and kinds that take `limit` seconds or longer may be left
    out.
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
    """The spec of a tuned straggler or hybrid schedule."""
    if member.covered == member.chunks:
        return spec_of(StragglerSpec, late=ROLE, chunks=member.chunks)
    return spec_of(Hybrid, late=ROLE, chunks=member.chunks, covered=member.covered)


def too_many_ports(setting: Setting, spec: Spec) -> bool:
    """Whether a schedule needs more peers at once than a rank has ports for."""
    return spec.kind == "direct" and setting.ranks - 1 > setting.ports
