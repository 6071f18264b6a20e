"""What buffers take that are split over rails: by the measured tables, and by each rail's fitted link."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxcomm.plan.rails import Rails, Share
from jaxcomm.planner.rails.split import Load, split_seconds
from jaxcomm.planner.rails.times import RailOption, options
from jaxcomm.profile import Profile, fit
from jaxcomm.schedules import Schedule
from jaxcomm.simulate import phases


class RailLink(NamedTuple):
    """One hop on a rail alone, as `profile.Link` has it, and how many times as long it takes beside other rails."""

    alpha_s: float
    beta_s_per_byte: float
    slowdown: float


RailLinks = Mapping[Share, RailLink]


def seconds(profile: Profile, shares: Sequence[Share], nbytes: int) -> float:
    """Predicted time of an allreduce that is split so, by the profile's tables; all ranks come together."""
    return split_seconds(tuple(Load(_option(profile, each), each.share) for each in shares), nbytes)


def rail_links(profile: Profile, rails: Rails) -> RailLinks:
    """The links of every rail as a plan's shares use it, by a fit of its table (`profile.fit`), for `phases_on`."""
    found = {}
    for key in dict.fromkeys(_whole(share) for each in rails.ranges for share in each.shares):
        option = _option(profile, key)
        link = fit(option.samples, "all_reduce", profile.ranks, f"rail {key.rail!r}")
        found[key] = RailLink(link.alpha_s, link.beta_s_per_byte, option.rail.slowdown)
    return found


def phases_on(links: RailLinks, shares: Sequence[Share], schedule: Schedule, nbytes: int) -> tuple[float, float]:
    """Seconds before and after the late rank's arrival of a schedule whose buffer is split over rails.

    Every rail runs the same schedule on its own part, at its own α and β, slowed down if it is not alone. A phase takes
    as long as on its slowest rail.

    Args:
      links: of `rail_links`.
      shares: how the buffer is split, of `Rails.split_for`.
      schedule: any schedule.
      nbytes: size of the whole buffer.
    """
    times = []
    for share in shares:
        link = links[_whole(share)]
        slowdown = link.slowdown if len(shares) > 1 else 1.0
        alpha, beta = link.alpha_s * slowdown, link.beta_s_per_byte * slowdown
        times.append(phases(schedule, math.ceil(share.share * nbytes), alpha, beta))
    return max(before for before, _ in times), max(after for _, after in times)


def _option(profile: Profile, share: Share) -> RailOption:
    rail = next(rail for rail in profile.rails if rail.name == share.rail)
    use = share.channels, share.cores
    return next(option for option in options(profile, rail) if (option.channels, option.cores) == use)


def _whole(share: Share) -> Share:
    """The key of `RailLinks`: how a rail is used, whatever it carries."""
    return share.model_copy(update={"share": 1.0})
