"""What one call of a given size could run, and which schedule of these to choose."""

from __future__ import annotations

from jaxcomm import simulate
from jaxcomm.plan.values import Broadcast, Chain, Hybrid, Nccl, Plain, Spec, Stragglers, StragglerSpec, Transfers
from jaxcomm.planner.late_ranks import ROLE
from jaxcomm.planner.schedules.setting import Setting
from jaxcomm.simulate import Tuned


def choose(setting: Setting, nbytes: int) -> Spec:
    """The fastest schedule for calls of this size.

    One that uses the delay must gain `min_gain` to be taken, and one for several late ranks as much over the best then.
    """
    choice: Spec = plain(setting, nbytes)
    for rivals in (late_specs(setting, nbytes), late_sets(setting, nbytes)):
        if rivals:
            rival = min(rivals, key=lambda spec: setting.seconds(spec, nbytes))
            pays = setting.seconds(rival, nbytes) < (1 - setting.min_gain) * setting.seconds(choice, nbytes)
            choice = rival if pays else choice
    return choice


def plain(setting: Setting, nbytes: int) -> Plain | Nccl:
    """The fastest of what cannot use a delay: a schedule, or NCCL's own allreduce."""
    best = plain_schedule(setting, nbytes)
    if setting.nccl_seconds(nbytes) < setting.seconds(best, nbytes):
        return Nccl(otherwise=best.kind)
    return best


def plain_schedule(setting: Setting, nbytes: int) -> Plain:
    """The fastest schedule that cannot use a delay."""
    specs = [Plain(kind="direct"), Plain(kind="ring"), Plain(kind="halving_doubling")]
    allowed = [spec for spec in specs if not too_many_ports(setting, spec)]
    return min(allowed, key=lambda spec: setting.seconds(spec, nbytes))


def call_lower_bound(setting: Setting, nbytes: int) -> float:
    """Mean seconds that no schedule of ours can beat, nor NCCL: its switches may add, which no rank's port bounds."""
    links = setting.links
    call = setting.ranks, nbytes, setting.late.window, links.alpha, links.beta, setting.ports, links.topology
    return min(simulate.lower_bound(*call), setting.nccl_seconds(nbytes))


def late_specs(setting: Setting, nbytes: int) -> list[Spec]:
    """The best of every kind that uses the delay of the late rank; empty if nobody is known to be late.

    Chunks and coverage are tuned for links that are alike; where they differ, the solver's schedules take that place.
    """
    if not setting.late.roles:
        return []
    if setting.links.topology:
        solved = [
            Transfers(late=ROLE, chunks=len(found.owners), index=index) for index, found in enumerate(setting.solved)
        ]
        return [Broadcast(late=ROLE), StragglerSpec(late=ROLE, chunks=setting.ranks - 1), *solved]
    call = setting.ranks, nbytes, setting.late.delays, setting.links.alpha, setting.links.beta
    members = simulate.straggler(*call), simulate.hybrid(*call)
    return [Broadcast(late=ROLE), *(tuned_spec(member) for member in members if member)]


def late_sets(setting: Setting, nbytes: int) -> list[Spec]:
    """The best of every kind for the last two late ranks, the last three, ...; empty if at most one is late.

    Chunk counts are 1, 2, 4, ... times those with which every rank has as much to do, and where links
    differ, so that every transfer must be timed, at most 16 times those.
    """
    specs: list[Spec] = []
    order, limit = setting.late.order, simulate.tune.max_chunks(setting.ranks, nbytes)
    for count in range(2, len(order) + 1):
        late = order[-count:]
        for kind, period in ((Stragglers, setting.ranks), (Chain, setting.ranks - 1)):
            times = max(1, min(limit // period, 16 if setting.links.topology else limit)).bit_length()
            members: list[Spec] = [kind(late=late, chunks=period << exponent) for exponent in range(times)]
            specs.append(min(members, key=lambda spec: setting.seconds(spec, nbytes)))
    return specs


def tuned_spec(member: Tuned) -> Spec:
    """The spec of a tuned member of the straggler family."""
    if member.covered == member.chunks:
        return StragglerSpec(late=ROLE, chunks=member.chunks)
    return Hybrid(late=ROLE, chunks=member.chunks, covered=member.covered)


def too_many_ports(setting: Setting, spec: Spec) -> bool:
    """Whether a schedule needs more peers at once than a rank has ports for."""
    return spec.kind == "direct" and setting.ranks - 1 > setting.ports
