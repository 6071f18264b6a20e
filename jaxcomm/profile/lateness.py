"""Finds late ranks, how often they are late, and by how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.errors import ProfileError
from jaxcomm.profile.schema import Profile

MOST_LATE: Final = 8  # a plan distinguishes at most this many late ranks
_JITTER: Final = 3.0  # minimum lateness after the bulk (see `late_ranks`), divided by the bulk's spread
_SHARE: Final = 0.1  # minimum lateness of another late rank, as a share of the latest rank's lateness
LEAST_LATENESS: Final = 0.1  # minimum lateness, as a share of a call's time; less is normal, and no plan gains from it
SIGNIFICANCE: Final = 0.05  # below this probability, chance does not explain which rank was last
_LEAD: Final = 0.5  # minimum time from the next-latest rank's arrival to a late rank's, as a share of the bulk's spread


@dataclass(frozen=True)
class Straggler:
    """The rank that is last most often, and whether it is late.

    `is_late` says that the rank was last more often than chance explains, and late enough to matter (see
    `find_straggler`). If `is_late` is false, no rank is late. `chance` is the probability that some rank is last this
    often if all ranks are equal.

    If several late ranks (see `late_ranks`) arrive last at the same time, all of them count as last. `delays` has one
    entry per step: the seconds from the next-slowest rank's arrival to this rank's arrival, 0 if another rank was last
    or equally late. The median, mean and maximum are over all steps, so they are small for a rank that is only
    sometimes late. `first_quarter_s` and `last_quarter_s` are the medians over the first and last quarter of the steps;
    their difference is the drift.
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
    is_late: bool
    chance: float


def find_straggler(profile: Profile) -> Straggler:
    """The rank that is last in most steps, its delay after the next-slowest rank in every step, and whether it is late.

    The rank is late if two conditions hold. First, if all ranks were equal, one of them would be last this often with a
    probability below 5 % (a binomial test, times the number of ranks). Second, the median of the rank's lead, over the
    steps in which the rank was last, is at least half of the bulk's spread. The lead is the time from the next-latest
    rank's arrival to the rank's own. The bulk's spread is the median time from a step's first arrival until half of the
    ranks have arrived. If several ranks are late together (see `late_ranks`), each of them is compared with the ranks
    that are not late. With fewer steps than the test needs (six for two ranks, three for eight), the rank must be last
    in all steps, and its lead must be at least 3 times the time from the first to the last arrival of the other ranks.
    With two ranks a single step always meets these conditions, so measure more steps.

    Args:
      profile: a profile with arrivals.

    Returns:
      The straggler. `late_steps` is 0 if no rank was ever last. `is_late` is false if no rank is late.

    Raises:
      ProfileError: the profile has no arrivals.
    """
    if not profile.arrivals:
        raise ProfileError(
            f"{profile.provenance.source}: has no arrivals, so the late rank is unknown.\n"
            "  Cure: measure with `jaxcomm profile`, or import a training log or a JAX trace."
        )
    return of_arrivals(np.array(profile.arrivals))


def of_arrivals(arrivals: NDArray[np.float64]) -> Straggler:
    """The result of `find_straggler` for an array of arrivals with one row per step and one column per rank.

    The array must have at least one row and two columns.
    """
    ranks = arrivals.shape[1]
    ascending = np.sort(arrivals, axis=1)
    lead = ascending[:, -1] - ascending[:, -2]
    last = arrivals.argmax(axis=1)
    latest = arrivals == ascending[:, -1:]
    often = _often_late(arrivals)
    late = np.isin(range(ranks), often)
    times_last = latest[(lead > 0) | (latest <= late).all(axis=1)].sum(axis=0)
    total_lead = np.bincount(last, weights=lead, minlength=ranks)
    rank = max(range(ranks), key=lambda r: (times_last[r], total_lead[r], -r))
    delays = np.where(last == rank, lead, 0.0)
    is_late, by_chance = _verdict(arrivals, rank, often)
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
        is_late=is_late,
        chance=by_chance,
    )


def chance(late_steps: int, steps: int, ranks: int) -> float:
    """The probability that at least one of `ranks` equal ranks is last in `late_steps` or more of `steps` steps.

    It is a Bonferroni bound, and at most 1.
    """
    counts = np.arange(steps + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(counts[1:]))])
    log_ways = log_factorial[-1] - log_factorial - log_factorial[::-1]
    log_terms = log_ways - counts * np.log(ranks) + (steps - counts) * np.log1p(-1 / ranks)
    return min(1.0, ranks * float(np.exp(log_terms[late_steps:]).sum()))


def late_ranks(profile: Profile) -> tuple[int, ...]:
    """The ranks that are persistently late, in their usual order of arrival. The last of them is the straggler.

    The bulk of a step has arrived when half of the ranks have arrived. A rank other than the straggler is late if two
    conditions hold. First, the test of `find_straggler` shows that it arrives after all ranks that are not late.
    Second, in more than half of the steps its lateness after the bulk exceeds two limits: 3 times the bulk's spread
    (the median time from a step's first rank to its bulk), and a tenth of the latest rank's median lateness. If more
    than 8 ranks, or more than half of the ranks, meet these conditions, only the latest of them count as late.

    Args:
      profile: a profile with arrivals.

    Returns:
      The late ranks in order of their median lateness; empty if no rank is late.

    Raises:
      ProfileError: the profile has no arrivals.
    """
    last = find_straggler(profile)
    if not last.is_late:
        return ()
    arrivals = np.array(profile.arrivals)
    often = _often_late(arrivals)
    others = [rank for rank in often if rank != last.rank and _verdict(arrivals, rank, often)[0]]
    most = min(MOST_LATE, profile.ranks // 2) - 1
    return (*others[max(0, len(others) - most) :], last.rank)


def _verdict(arrivals: NDArray[np.float64], rank: int, often: list[int]) -> tuple[bool, float]:
    """Whether a rank is late, and the probability that it arrives last this often by chance alone.

    The rank is compared with the ranks that are not often late.
    """
    others = np.delete(arrivals, often if rank in often else [rank], axis=1)
    lead = arrivals[:, rank] - others.max(axis=1)
    times, steps, ranks = int((lead > 0).sum()), len(lead), others.shape[1] + 1
    by_chance = chance(times, steps, ranks)
    if not times:
        return False, by_chance
    usual = float(np.median(lead[lead > 0]))
    if chance(steps, steps, ranks) >= SIGNIFICANCE:
        return times == steps and usual >= _JITTER * float(np.median(np.ptp(others, axis=1))), by_chance
    return by_chance < SIGNIFICANCE and usual >= _LEAD * _spread(arrivals), by_chance


def _spread(arrivals: NDArray[np.float64]) -> float:
    """The median time from a step's first rank to its bulk."""
    return float(np.median(_bulk(arrivals) - arrivals.min(axis=1)))


def _bulk(arrivals: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each step, the time at which half of the ranks have arrived."""
    middle: NDArray[np.float64] = np.sort(arrivals, axis=1)[:, (arrivals.shape[1] - 1) // 2]
    return middle


def _often_late(arrivals: NDArray[np.float64]) -> list[int]:
    """The ranks that meet the second condition of `late_ranks`, in ascending order of their median lateness."""
    behind = arrivals - _bulk(arrivals)[:, None]
    usual = np.median(behind, axis=0)
    margin = max(_JITTER * _spread(arrivals), _SHARE * float(usual.max()), 0.0)
    often = np.flatnonzero((behind > margin).mean(axis=0) > 0.5)
    return sorted(often.tolist(), key=lambda rank: (usual[rank], rank))
