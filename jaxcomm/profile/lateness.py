"""Which rank is late, how often, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxcomm.errors import ProfileError
from jaxcomm.profile.schema import Profile


@dataclass(frozen=True)
class Straggler:
    """The rank that is last most often.

    `delays` has one entry per step: seconds from the next-slowest rank's arrival to this rank's, 0 when another rank
    was last. The median, mean and maximum are over all steps, so a rank that is late now and then looks as rarely
    useful as it is. `first_quarter_s` and `last_quarter_s` are the medians over the first and last quarter of the
    steps: their distance is the drift.
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
      The straggler; with `late_steps` 0 if no rank was ever later than all others.

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
    times_last = np.bincount(last[lead > 0], minlength=profile.ranks)
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
