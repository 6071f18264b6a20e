"""The schedules that `jaxcomm profile` should time for a size, chosen by the links alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from jaxcomm.errors import PlanError
from jaxcomm.plan.timed import schedule_name
from jaxcomm.plan.values import Plain, Spec, StragglerSpec
from jaxcomm.planner.late_ranks import ROLE, LateRanks
from jaxcomm.planner.schedules.candidates import host_specs, late_specs, too_many_ports
from jaxcomm.planner.schedules.setting import Setting, spec_of
from jaxcomm.profile import Profile, find_straggler
from jaxcomm.profile.cluster import Cluster
from jaxcomm.profile.lateness import LEAST_LATENESS
from jaxcomm.profile.timed_schedules import ScheduleName
from jaxcomm.schedules import template
from jaxcomm.schedules.default_schedules import default_schedule
from jaxcomm.simulate import PORTS, Delays

MOST: Final = 9  # maximum number of schedules per size
MULTIPLES: Final = (1, 4, 16)  # on one host: numbers of chunks of straggler schedules, divided by (number of ranks - 1)


def candidates(profile: Profile) -> Callable[[int], list[ScheduleName]]:
    """A function that returns the schedules worth timing, given the size of one rank's buffer in bytes.

    The default schedule comes first. The others follow in order of their expected time.

    Args:
      profile: has links and arrivals; whole schedules need not have been timed.
    """
    setting = _setting(profile)
    names = [*profile.hosts] or [""] * profile.ranks
    number = {name: index for index, name in enumerate(dict.fromkeys(names))}
    hosts = [number[name] for name in names]

    def of_size(nbytes: int) -> list[ScheduleName]:
        usual = default_schedule(nbytes, hosts)
        default = Plain(kind="ring" if usual == "ring" else "direct")
        others = {spec for spec in _specs(setting, nbytes) if spec != default}
        # All processes of a job need the same order, but a set's order differs between processes.
        ordered = [default, *sorted(others, key=lambda spec: (setting.seconds(spec, nbytes), repr(spec)))]
        return [name for name in map(schedule_name, ordered) if name][:MOST]

    return of_size


def _specs(setting: Setting, nbytes: int) -> Iterator[Spec]:
    yield from (spec_of(Plain, kind=kind) for kind in ("direct", "ring", "halving_doubling"))
    yield from host_specs(setting, nbytes)
    late = late_specs(setting, nbytes)
    yield from (spec for spec in late if not too_many_ports(setting, spec))
    # Tuned chunk counts depend on α, which is measured least accurately, so half and twice these counts are tried, too.
    tuned = {spec.chunks for spec in late if isinstance(spec, StragglerSpec)}
    counts = {count for chunks in tuned for count in (chunks // 2, 2 * chunks) if count}
    if late and setting.hosts == 1:
        counts |= {multiple * (setting.ranks - 1) for multiple in MULTIPLES}
    yield from (spec_of(StragglerSpec, late=ROLE, chunks=count) for count in sorted(counts - tuned))


def _setting(profile: Profile) -> Setting:
    late, call_s = LateRanks.of(profile), profile.collective.seconds if profile.collective else 0.0
    if late.turns and np.median(late.turns.lateness) >= LEAST_LATENESS * call_s:
        # Only schedules for the rank that is last in most steps are timed. They stand for the same schedules for other
        # late ranks.
        late = LateRanks({ROLE: find_straggler(profile).rank}, Delays(late.turns.lateness.tolist()))
    elif late.roles:  # if several ranks are late, only schedules for the last one are timed
        late = LateRanks({ROLE: late.roles[ROLE]}, late.delays, late.lateness)
    try:
        found = template(profile.ranks) if late.roles else None
    except PlanError:  # OR-Tools is missing, so only schedules that use no delay are timed
        late, found = LateRanks(), None
    links = Cluster(profile.link.alpha_s, profile.link.beta_s_per_byte, profile.network, incast=profile.incast or 1.0)
    return Setting(
        ranks=profile.ranks,
        links=links,
        ports=PORTS,
        min_gain=0.0,
        late=late,
        template=found,
        hosts=len({*profile.hosts}) or 1,
    )
