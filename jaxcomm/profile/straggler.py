"""Finds late ranks, how often they are late, and by how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.errors import ProfileError
from jaxcomm.profile.schema import Profile

MOST_LATE: Final = 8  # late ranks that a plan distinguishes
_JITTER: Final = 3.0  # times the bulk's own spread that a late rank is behind the bulk
_SHARE: Final = 0.1  # of the latest rank's lateness that another late rank has at least
SIGNIFICANCE: Final = 0.05  # below this probability chance no longer explains who was last
_LEAD: Final = 0.5  # of the bulk's spread that a late rank leads the next by at least, or it does not matter


@dataclass(frozen=True)
class Straggler:
    """The rank that is last most often, and whether it is late.

    `is_late` says that it was last more often than chance explains, by a lead that matters; without
    it nobody is late. `chance` is the probability that some rank is last so often if all are alike.

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
    is_late: bool
    chance: float


def find_straggler(profile: Profile) -> Straggler:
    """The rank that is last in most steps, its delay to the next-slowest in every step, and whether it is late.

    It is late if two things are so. If all ranks were alike, the probability that one of them is last so often would be
    below 5 % (a binomial test, times the number of ranks). And in the steps in which it was last, its median lead on
    the next rank is at least half of the bulk's spread: the median time from a step's first rank to the one with which
    half are there. Ranks that are late together (`late_ranks`) are each compared with those that are not. In fewer
    steps than can decide (five of two ranks, two of eight), it must be last in all, by 3 times the time from the
    others' first to their last. With two ranks, one is always last by that in one step: measure more.

    Args:
      profile: a profile with arrivals.

    Returns:
      The straggler; with `late_steps` 0 if nobody was ever last, without `is_late` if nobody is late.

    Raises:
      ProfileError: the profile has no arrivals.
    """
    if not profile.arrivals:
        raise ProfileError(
            f"{profile.provenance.source}: has no arrivals, so nobody can say which rank is late.\n"
            "  Cure: measure with `jaxcomm profile`, or import a training log or a JAX trace."
        )
    return of_arrivals(np.array(profile.arrivals))


def of_arrivals(arrivals: NDArray[np.float64]) -> Straggler:
    """As `find_straggler`, of arrivals alone: a row per step, at least one, and a column per rank, at least two."""
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
    """The probability that one of `ranks` alike is last in `late_steps` of `steps` or more, at most 1 (Bonferroni)."""
    counts = np.arange(steps + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(counts[1:]))])
    log_ways = log_factorial[-1] - log_factorial - log_factorial[::-1]
    log_terms = log_ways - counts * np.log(ranks) + (steps - counts) * np.log1p(-1 / ranks)
    return min(1.0, ranks * float(np.exp(log_terms[late_steps:]).sum()))


def late_ranks(profile: Profile) -> tuple[int, ...]:
    """The ranks that are persistently late, in the order in which they usually come; the last is the straggler.

    The bulk of a step is there when half of the ranks are. Beside the straggler a rank is late if, by the same test, it
    comes after all that are not, and if in more than half of the steps it comes after the bulk by more than 3 times the
    bulk's own spread (the median time from a step's first rank to its bulk), and by more than a tenth of the latest
    rank's median lateness. At most half of the ranks are late, and at most 8: those that are latest.

    Args:
      profile: a profile with arrivals.

    Returns:
      The ranks by their median lateness; empty if nobody is late.

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
    """Whether a rank is late, and how probable it is that chance makes one last so often among those not often late."""
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
    """When half of the ranks are there, by step."""
    middle: NDArray[np.float64] = np.sort(arrivals, axis=1)[:, (arrivals.shape[1] - 1) // 2]
    return middle


def _often_late(arrivals: NDArray[np.float64]) -> list[int]:
    """The ranks that come after the bulk by the margin of `late_ranks` in more than half of the steps, latest last."""
    behind = arrivals - _bulk(arrivals)[:, None]
    usual = np.median(behind, axis=0)
    margin = max(_JITTER * _spread(arrivals), _SHARE * float(usual.max()), 0.0)
    often = np.flatnonzero((behind > margin).mean(axis=0) > 0.5)
    return sorted(often.tolist(), key=lambda rank: (usual[rank], rank))
