"""The late ranks of a run; no rank counts as late if the lateness is too small to matter to a plan."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.profile import Profile, lateness

CALLS: Final = 32  # number of calls that determine the late ranks; both halves of these calls must agree
CHANGED: Final = 1.5  # factor by which lateness must change for a new plan
# Smallest lateness that matters, as a share of a call's time. A plan gains at most the lateness. Even if no rank is
# late, the times at which the ranks end a call differ by about this share.
_MATTERS: Final = 0.1


class Situation(NamedTuple):
    """The late ranks.

    Attributes:
      late: the late ranks; the latest rank comes last.
      by_s: median seconds by which the latest rank arrives after the next-latest rank.
    """

    late: tuple[int, ...]
    by_s: float

    def is_like(self, other: Situation) -> bool:
        """Whether a plan for this situation also fits the situation `other`."""
        near = not self.late or max(self.by_s, other.by_s) <= CHANGED * min(self.by_s, other.by_s)
        return self.late == other.late and near

    def __str__(self) -> str:
        if not self.late:
            return "no rank is late"
        ranks = f"rank{'s' * (len(self.late) > 1)} {', '.join(map(str, self.late))}"
        return f"{ranks} {'are' if len(self.late) > 1 else 'is'} late, by {1e3 * self.by_s:.3g} ms"


def steady(profile: Profile, arrivals: NDArray[np.float64]) -> Situation | None:
    """The situation of the latest calls; None if there are too few calls, or the situation is changing.

    Args:
      profile: the run's profile with the time of the run's collective; the profile's arrivals are ignored.
      arrivals: the ranks' arrivals in seconds; a row for each call, a column for each rank.
    """
    if len(arrivals) < CALLS:
        return None
    halves = arrivals[-CALLS : -CALLS // 2], arrivals[-CALLS // 2 :]
    one, other = (_of(profile.model_copy(update={"arrivals": half.tolist()})) for half in halves)
    return other if one.is_like(other) else None


def _of(profile: Profile) -> Situation:
    late, by_s = lateness.late_ranks(profile), lateness.find_straggler(profile).median_s
    matters = late and profile.collective and by_s >= _MATTERS * profile.collective.seconds
    return Situation(late, by_s) if matters else Situation((), 0.0)
