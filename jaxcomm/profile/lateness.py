"""Which ranks are late, how often, and by how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.errors import ProfileError
from jaxcomm.profile.schema import Profile

MOST_LATE: Final = 8  # late ranks that a plan tells apart
_JITTER: Final = 3.0  # times the bulk's own spread that a late rank is behind the bulk
_SHARE: Final = 0.1  # of the latest rank's lateness that another late rank has at least


@dataclass(frozen=True)
class Straggler:
    """The rank that is last most often.

    Late ranks (`late_ranks`) that come last at the same time are all last. `delays` has one entry per step: seconds
    from the next-slowest rank's arrival to this rank's, 0 when another rank was last, too. The median, mean and maximum
    are over all steps, so a rank that is late now and then looks as rarely useful as it is. `first_quarter_s` and
    `last_quarter_s` are the medians over the first and last quarter of the steps: their distance is the drift.
    """

    rank: int
    share: float
    late_steps: int
    steps: int
    delays: list[float]
    median_s: float
    mean_s: float
    max_s: float
    first_quarter_s: float
    last_quarter_s: float


def straggler(profile: Profile) -> Straggler:
    """The rank that is last in most steps, and its delay to the next-slowest in every step.

    Args:
      profile: a profile with arrivals.

    Returns:
      The straggler; with `late_steps` 0 if nobody was ever last.

    Raises:
      ProfileError: the profile has no arrivals.
    """
    if not profile.arrivals:
        raise ProfileError(
            f"{profile.provenance.source}: has no arrivals, so nobody can say which rank is late.\n"
            "  Cure: measure with `jaxcomm profile`, or import a training log or a JAX trace."
        )
    arrivals = np.array(profile.arrivals)
    ascending = np.sort(arrivals, axis=1)
    lead = ascending[:, -1] - ascending[:, -2]
    last = arrivals.argmax(axis=1)
    latest = arrivals == ascending[:, -1:]
    late = np.isin(range(profile.ranks), _often_late(arrivals))
    times_last = latest[(lead > 0) | (latest <= late).all(axis=1)].sum(axis=0)
    total_lead = np.bincount(last, weights=lead, minlength=profile.ranks)
    rank = max(range(profile.ranks), key=lambda r: (times_last[r], total_lead[r], -r))
    delays = np.where(last == rank, lead, 0.0)
    quarter = max(1, len(delays) // 4)
    return Straggler(
        rank=rank,
        share=float(times_last[rank]) / len(delays),
        late_steps=int(times_last[rank]),
        steps=len(delays),
        delays=delays.tolist(),
        median_s=float(np.median(delays)),
        mean_s=float(delays.mean()),
        max_s=float(delays.max()),
        first_quarter_s=float(np.median(delays[:quarter])),
        last_quarter_s=float(np.median(delays[-quarter:])),
    )


def late_ranks(profile: Profile) -> tuple[int, ...]:
    """The ranks that are persistently late, in the order in which they usually come; the last is the straggler.

    The bulk of a step is there when half of the ranks are. Beside the straggler a rank is late if in more than half of
    the steps it comes after the bulk by more than 3 times the bulk's own spread (the median time from a step's first
    rank to its bulk), and by more than a tenth of the latest rank's median lateness. At most half of the ranks are
    late, and at most 8: those that are latest.

    Args:
      profile: a profile with arrivals.

    Returns:
      The ranks by their median lateness; empty if nobody was ever last.

    Raises:
      ProfileError: the profile has no arrivals.
    """
    last = straggler(profile)
    if not last.late_steps:
        return ()
    others = [rank for rank in _often_late(np.array(profile.arrivals)) if rank != last.rank]
    most = min(MOST_LATE, profile.ranks // 2) - 1
    return (*others[max(0, len(others) - most) :], last.rank)


def _often_late(arrivals: NDArray[np.float64]) -> list[int]:
    """The ranks that come after the bulk by the margin of `late_ranks` in more than half of the steps, latest last."""
    bulk = np.sort(arrivals, axis=1)[:, (arrivals.shape[1] - 1) // 2]
    behind = arrivals - bulk[:, None]
    usual = np.median(behind, axis=0)
    margin = max(_JITTER * float(np.median(bulk - arrivals.min(axis=1))), _SHARE * float(usual.max()), 0.0)
    often = np.flatnonzero((behind > margin).mean(axis=0) > 0.5)
    return sorted(often.tolist(), key=lambda rank: (usual[rank], rank))
