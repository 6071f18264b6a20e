"""Chooses schedules, in advance, for the case that a host loses a rail."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from jaxcomm.plan.limits import MAX_LISTED, MAX_LOST_RAILS
from jaxcomm.plan.lost_rails import LostRail, LostRailRange, listed
from jaxcomm.plan.rails import Rails
from jaxcomm.plan.values import Entry, Hierarchical
from jaxcomm.planner import rails
from jaxcomm.planner.late_ranks import LateRanks
from jaxcomm.planner.rounding import significant
from jaxcomm.planner.schedules.on_hosts import hierarchical_specs
from jaxcomm.planner.schedules.setting import Setting
from jaxcomm.profile import Profile
from jaxcomm.profile.changes import without_rail
from jaxcomm.profile.cluster import Topology
from jaxcomm.simulate import LinkCosts
from jaxcomm.simulate.clock import TIMED

# Buffer sizes, in bytes, at which the plan's size ranges begin. The last range has no upper limit.
SIZES: Final = tuple(1 << power for power in range(16, 29))
LARGE: Final = 1 << 26  # buffer size, in bytes, at which times with and without a rail are compared
# Schedules are made only if the loss of a rail slows its host by at least this factor. A measurement also takes a NIC
# for slow only from this factor on.
SLOWER: Final = 1.25
# The schedule of the next larger range is reused if it takes at most this multiple of the best schedule's time.
ALIKE: Final = 1.02


def decide(profile: Profile, setting: Setting, split: Rails | None, entries: Sequence[Entry]) -> tuple[LostRail, ...]:
    """The schedules for each pair of host and rail, to run while only this host lacks the rail.

    Without the rail the host's bytes take longer, so the other hosts sum more of the chunks, as in schedules for NICs
    with different rates. A schedule must save `min_gain` of the time that the entry's schedule takes without the rail.
    It must save this share at its size and at all larger sizes, both without a late rank and with the setting's delays.
    If the network is unknown, each host must have exactly one rank.

    Args:
      profile: a profile with rails, or with the shares of the job's rails.
      setting: the plan's setting.
      split: the split over the plan's rails.
      entries: the plan's entries. The search goes from large to small sizes and ends at an entry with a selector or
        another executor.

    Returns:
      At most MAX_LOST_RAILS lost rails. Empty for one or two hosts, which cannot gain, or for too many hosts and rails.
    """
    network = setting.links.topology or _network(profile)
    slower = {rail: ratio for rail, ratio in _slower(profile, split).items() if ratio >= SLOWER}
    hosts = len({*network.hosts}) if network else 0
    if not network or not hosts > 2 or setting.ranks > TIMED or not 0 < hosts * len(slower) <= MAX_LOST_RAILS:
        return ()
    found: list[LostRail] = []
    known: dict[tuple[int, float], tuple[LostRailRange, ...]] = {}
    alike = len({network.hosts.count(host) for host in network.hosts}) == 1 and not network.racks and not network.nics
    for rank in sorted({network.hosts.index(host) for host in network.hosts}):
        for rail, ratio in slower.items():
            lacking, case = _lacking(network, network.hosts[rank], ratio), (0 if alike else rank, ratio)
            if case not in known:
                known[case] = _ranges(setting, lacking, entries)
            if known[case]:
                found.append(LostRail(rank=rank, rail=rail, topology=lacking, ranges=known[case]))
    return _within_limits(found, entries, setting.ranks)


def _network(profile: Profile) -> Topology | None:
    """A network of equal hosts with one rank each; None if ranks share a host or the hosts are unknown."""
    names = {*profile.hosts}
    alone = len(names) == profile.ranks
    return Topology(hosts=tuple(range(profile.ranks)), nic="rank", slow=1.0) if alone else None


def _slower(profile: Profile, split: Rails | None) -> Mapping[str, float]:
    """For each rail, the time of a host's bytes without the rail divided by their time with the rail."""
    if split and len(split.members) < 2:
        return {}
    if not split:
        return {rail: significant(1 / (1 - share)) for rail, share in profile.rail_shares.items() if share < 1}
    found = {}
    for member in split.members:
        left = without_rail(profile, member.name)
        other = rails.decide(left, split.min_gain)
        assert other
        times = (rails.seconds(each, of.split_for(LARGE), LARGE) for each, of in ((left, other), (profile, split)))
        after, before = times
        found[member.name] = significant(after / before) if before > 0 else 1.0
    return found


def _lacking(network: Topology, host: int, ratio: float) -> Topology:
    """The network with the time per byte of the NICs of `host` multiplied by `ratio`."""
    nics = network.nics or (1.0,) * len(network.hosts)
    slowed = (nic * (ratio if at == host else 1) for nic, at in zip(nics, network.hosts, strict=True))
    return network.model_copy(update={"nics": tuple(min(1e6, nic) for nic in slowed)})


def _ranges(setting: Setting, lacking: Topology, entries: Sequence[Entry]) -> tuple[LostRailRange, ...]:
    """The schedules for the network `lacking`, for all size ranges above the largest range without enough saving."""
    links = replace(setting.links, topology=lacking)
    late = replace(setting, links=links, executors=None, timed=None)
    own = replace(late, late=LateRanks(), template=None)
    costs, found = LinkCosts(links), list[LostRailRange]()
    for low, high in reversed([*itertools.pairwise(SIZES), (SIZES[-1], None)]):
        nbytes = low if high is None else (low + high) // 2
        between = [each for each in entries if each.min_bytes < (high or low + 1) and low <= (each.max_bytes or low)]
        if any(each.selector or each.executor or each.schedule.kind in ("nccl", "lax") for each in between):
            break
        best = hierarchical_specs(own, nbytes)
        if not best or not isinstance(spec := best[0], Hierarchical):
            break
        if found and own.seconds(found[-1].schedule, nbytes) <= ALIKE * own.seconds(spec, nbytes):
            spec = found[-1].schedule
        entry = next(each for each in between if nbytes <= (each.max_bytes or nbytes))
        times = {
            size: (own.seconds(spec, size), costs.cost(setting.schedule(entry.schedule), size))
            for size in (low, nbytes)
        }
        # `late` builds both specs on the network that lacks the rail. Equal specs would take equal times there, so they
        # are not compared.
        others = times if spec != entry.schedule else ()
        waiting = [(late.seconds(spec, size), late.seconds(entry.schedule, size)) for size in others]
        if any(seconds >= (1 - setting.min_gain) * otherwise for seconds, otherwise in (*times.values(), *waiting)):
            break
        seconds, otherwise = map(significant, times[nbytes])
        one = LostRailRange(
            min_bytes=low,
            max_bytes=None if high is None else high - 1,
            schedule=spec,
            reference_bytes=nbytes,
            seconds=seconds,
            otherwise=otherwise,
        )
        if found and found[-1].schedule == spec:
            one = found.pop().model_copy(update={"min_bytes": low})
        found.append(one)
    return tuple(reversed(found))


def _within_limits(found: list[LostRail], entries: Sequence[Entry], ranks: int) -> tuple[LostRail, ...]:
    """The lost rails, without the ranges of the smallest sizes if a plan cannot hold all schedules."""
    of_entries = {spec for each in entries for spec in each.specs.values() if isinstance(spec, Hierarchical)}
    left = MAX_LISTED - ranks * sum(spec.chunks for spec in of_entries) - ranks**2
    while found and listed(found, ranks) > left:
        least = min(each.ranges[0].min_bytes for each in found)
        kept = [(each, tuple(one for one in each.ranges if one.min_bytes > least)) for each in found]
        found = [each.model_copy(update={"ranges": ranges}) for each, ranges in kept if ranges]
    return tuple(found)
