"""The late ranks and their delays, as every decision takes them into account."""

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
    """By step: the rank that came last, and by how many seconds after all others."""

    last: NDArray[np.int64]
    lateness: NDArray[np.float64]


@dataclass(frozen=True)
class LateRanks:
    """The late ranks; by default none is known, and no schedule may count on a delay.

    Attributes:
      roles: ranks by role; binds "straggler" if it is known who is late, and is empty otherwise.
      delays: how late the last rank is.
      lateness: how late it is in each step, in their order; empty if several are late.
      order: the roles of several late ranks in the order in which they come; () if at most one is late.
      releases: [i, step]: when all but the i-th of them and those after it are there, in seconds after the last one's
        arrival; empty if at most one is late.
      turns: where none is known to be late, who came last; None: not known.
    """

    roles: Mapping[str, int] = field(default_factory=dict)
    delays: Delays = field(default_factory=Delays)
    lateness: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    order: tuple[str, ...] = ()
    releases: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    turns: LatestRanks | None = None

    @classmethod
    def of(cls, profile: Profile) -> Self:
        """Those who are late in a profile; nobody where α is assumed, as a delay's gain may then be a loss."""
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
        """The late ranks, in the order in which they come."""
        return tuple(self.roles[name] for name in (self.order or self.roles))

    @property
    def arrivals(self) -> NDArray[np.float64]:
        """When those are there that are not late, then each of the late ranks, in seconds after the last one's arrival;
        one column per step."""
        if self.order:
            return self.releases
        if not self.roles:
            return np.zeros((1, 1))
        return np.array([-self.delays.seconds, np.zeros_like(self.delays.seconds)])

    @property
    def window(self) -> Delays:
        """The time for which ranks that are not late wait for the last one."""
        return Delays(-self.releases[0]) if self.order else self.delays

    @property
    def stages(self) -> NDArray[np.float64]:
        """When more and more late ranks are there, in seconds after those that are not late: first none of them, last
        all. One column per step, by when all are there."""
        if not self.order:
            return np.array([np.zeros_like(self.delays.seconds), self.delays.seconds])
        after: NDArray[np.float64] = self.releases - self.releases[0]
        return after[:, after[-1].argsort(kind="stable")]

    def stage(self, spec: Spec) -> int:
        """At which of the stages the precondition of a schedule for one late rank, or several together, can start."""
        together = len(spec.late) if isinstance(spec, Stragglers | Hierarchical) else 1
        return max(1, len(self.order)) - max(1, together)
