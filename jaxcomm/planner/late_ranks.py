"""The late ranks and their delays, which all decisions use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from jaxcomm.plan.limits import MAX_TOGETHER
from jaxcomm.plan.values import Hierarchical, Spec, Stragglers
from jaxcomm.profile import Profile, find_straggler, late_ranks
from jaxcomm.simulate import Delays, stages

ROLE: Final = "straggler"


@dataclass(frozen=True)
class LatestRanks:
    """For each step, the last rank to arrive, and the seconds by which it arrives after all other ranks."""

    last: NDArray[np.int64]
    lateness: NDArray[np.float64]


@dataclass(frozen=True)
class LateRanks:
    """The late ranks. By default there are none, and no schedule may rely on a delay.

    Attributes:
      roles: the rank of each role; empty if no rank is late. "straggler" is the rank that arrives last; with several
        late ranks, "straggler_2" arrives before it, and so on.
      delays: the distribution of the last rank's lateness over the steps.
      lateness: how late the last rank is in each step, in step order; empty if several ranks are late.
      order: the roles of several late ranks in order of arrival; () if at most one rank is late.
      releases: releases[i, step] is the time at which all ranks but the late ranks i, i + 1, … have arrived, in seconds
        after the last arrival (0 or negative); empty if at most one rank is late.
      turns: the last rank of each step if no rank is the straggler; None if there is one, or arrivals are unknown.
    """

    roles: Mapping[str, int] = field(default_factory=dict)
    delays: Delays = field(default_factory=Delays)
    lateness: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    order: tuple[str, ...] = ()
    releases: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    turns: LatestRanks | None = None

    @classmethod
    def of(cls, profile: Profile) -> Self:
        """The late ranks of a profile; none if α is assumed, because relying on a delay could then lose time."""
        last = find_straggler(profile) if profile.arrivals and not profile.link.alpha_assumed else None
        if last is None:
            return cls()
        if not last.is_late:
            arrivals = np.array(profile.arrivals)
            ascending = np.sort(arrivals, axis=1)
            return cls(turns=LatestRanks(arrivals.argmax(axis=1), ascending[:, -1] - ascending[:, -2]))
        ranks = late_ranks(profile) if profile.ranks <= MAX_TOGETHER else ()
        if len(ranks) < 2:
            return cls({ROLE: last.rank}, Delays(last.delays), np.array(last.delays))
        names = [ROLE, *(f"{ROLE}_{place}" for place in range(2, len(ranks) + 1))]
        roles = dict(zip(names, reversed(ranks), strict=True))
        releases = stages(ranks, profile.arrivals)
        return cls(roles, Delays(last.delays), order=tuple(reversed(names)), releases=releases)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The late ranks in order of arrival."""
        return tuple(self.roles[name] for name in (self.order or self.roles))

    @property
    def arrivals(self) -> NDArray[np.float64]:
        """Times in seconds after the last arrival (0 or negative), with one column per step.

        The first row is the time at which all ranks that are not late have arrived. Each further row is the arrival of
        a late rank.
        """
        if self.order:
            return self.releases
        if not self.roles:
            return np.zeros((1, 1))
        return np.array([-self.delays.seconds, np.zeros_like(self.delays.seconds)])

    @property
    def window(self) -> Delays:
        """For each step, the time for which all ranks that are not late wait together for the last rank."""
        return Delays(-self.releases[0]) if self.order else self.delays

    @property
    def stages(self) -> NDArray[np.float64]:
        """Times in seconds after the arrival of the ranks that are not late.

        Row i is the time at which i late ranks have arrived. The columns are the steps, sorted by the last arrival.
        """
        if not self.order:
            return np.array([np.zeros_like(self.delays.seconds), self.delays.seconds])
        after: NDArray[np.float64] = self.releases - self.releases[0]
        return after[:, after[-1].argsort(kind="stable")]

    def stage(self, spec: Spec) -> int:
        """The row of `stages` at which only the late ranks of `spec` are missing, so the precondition can start."""
        together = len(spec.late) if isinstance(spec, Stragglers | Hierarchical) else 1
        return max(1, len(self.order)) - max(1, together)
