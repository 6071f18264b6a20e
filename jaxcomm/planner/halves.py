"""Chooses the schedules of reduce-scatters and all-gathers by size.

All-gathers run the schedules of reduce-scatters reversed, in equal time. Delays are ignored, because no schedule for a
late rank would gain (see `jaxcomm.schedules.halves`).
"""

from __future__ import annotations

from functools import cache

from jaxcomm import schedules, simulate
from jaxcomm.plan.halves import HalfAlternative, HalfEntry, HalfSpec
from jaxcomm.plan.specs import build_half
from jaxcomm.plan.values import HalvingDoubling, Hierarchical, Plain
from jaxcomm.planner.byte_ranges import TOLERANCE, Choices, byte_ranges, sizes_between
from jaxcomm.planner.rounding import significant
from jaxcomm.planner.schedules.ranges import STEPS
from jaxcomm.planner.schedules.setting import Setting
from jaxcomm.simulate import clock


def decide(setting: Setting) -> tuple[HalfEntry, ...] | None:
    """The plan's entries for every size. Their times are computed as for all-reduces.

    Returns None if direct is best at every size. Also returns None if XLA's collectives run the plan, because only
    their all-reduces were timed.
    """
    if setting.runs_by_xla:
        return None
    offers, links = half_specs(setting), setting.links
    made = {spec: build_half(spec, "reduce_scatter", setting.ranks, links.topology) for spec in offers}

    @cache
    def seconds(spec: HalfSpec, nbytes: int) -> float:
        return simulate.phases(made[spec], nbytes, *simulate.link_of(made[spec], nbytes, links))[1]

    def choose(nbytes: int) -> HalfSpec:
        return min(offers, key=lambda spec: seconds(spec, nbytes))

    def serves(choice: HalfSpec, nbytes: int, best: HalfSpec) -> bool:
        return choice == best or seconds(choice, nbytes) <= TOLERANCE * seconds(best, nbytes)

    def entry(low: int, high: int | None, nbytes: int, choice: HalfSpec) -> HalfEntry:
        times = {spec: significant(seconds(spec, nbytes)) for spec in offers}
        bound = simulate.half_lower_bound(setting.ranks, nbytes, links.alpha, links.beta, setting.ports, links.topology)
        return HalfEntry(
            min_bytes=low,
            max_bytes=high,
            schedule=choice,
            reference_bytes=nbytes,
            seconds=times[choice],
            lower_bound=significant(bound),
            alternatives=tuple(HalfAlternative(schedule=spec, seconds=times[spec]) for spec in offers),
        )

    choices = Choices(choose, lambda spec: spec.kind, serves)
    found = tuple(entry(*each) for each in byte_ranges(choices, sizes_between((), STEPS)))
    return None if all(each.schedule == Plain(kind="direct") for each in found) else found


def half_specs(setting: Setting) -> list[HalfSpec]:
    """The schedules that a reduce-scatter could run."""
    ranks, topology = setting.ranks, setting.links.topology
    found: list[HalfSpec] = [Plain(kind="direct")] * (ranks - 1 <= setting.ports)
    found.append(Plain(kind="ring"))
    if ranks & (ranks - 1) == 0:
        found.append(Plain(kind="halving_doubling"))
    if not topology or not len({*topology.hosts}) > 1:
        return found
    if ranks & (ranks - 1) == 0:
        orders = {order: name for name, order in schedules.orders_by_host(topology.hosts).items()}
        orders.pop(tuple(range(ranks)), None)  # plain halving_doubling has this order
        found += [HalvingDoubling.model_validate({"order": name}) for name in orders.values()]
    if ranks <= clock.TIMED and (topology.racks or len({*topology.hosts}) < ranks):
        found.append(Hierarchical(chunks=ranks))
    return found
