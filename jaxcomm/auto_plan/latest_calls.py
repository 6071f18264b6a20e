"""Arrivals and durations of a run's own calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm import ffi

_KEPT = 64  # number of latest calls that are kept for each site

Site = tuple[str, str, int]  # name, axes and bytes


class Calls(NamedTuple):
    """The latest calls of a site under a plan.

    Attributes:
      number: number of calls since the latest `mark`.
      lately: number of calls since the previous `look`.
      arrivals: each rank's arrival, in seconds after the first rank's; a row for each call, a column for each rank.
      after_s: seconds from the last arrival to the end, for each call.
    """

    number: int
    lately: int
    arrivals: NDArray[np.float64]
    after_s: NDArray[np.float64]


class LatestCalls:
    """The all-reduces over all ranks since the latest `mark`."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._marks: dict[tuple[str, Site], int] = {}
        self._seen: dict[tuple[str, Site], int] = {}

    def mark(self) -> None:
        """Restarts the count of calls."""
        self._marks = {(site["plan"], _key(site)): site["calls"] for site in self._sites()}

    def look(self, *plans: str) -> dict[tuple[str, Site], Calls]:
        """The calls under these plans, by plan and site.

        Args:
          plans: the plans' names in statistics; "auto" stands for no plan.
        """
        found, seen = {}, {}
        for site in self._sites():
            key = site["plan"], _key(site)
            count = seen[key] = site["calls"]
            if count < self._marks.get(key, 0):  # the statistics have been reset
                del self._marks[key]
            number, lately = count - self._marks.get(key, 0), count - self._seen.get(key, 0)
            rows = min(number, _KEPT, len(site["arrivals"]))
            if site["plan"] in plans and rows > 0:
                latest = np.array(site["arrivals"][-rows:]), np.array(site["after_arrival_s"][-rows:])
                found[key] = Calls(number, lately if lately >= 0 else count, *latest)
        self._seen = seen
        return found

    def _sites(self) -> Iterable[Mapping[str, Any]]:
        return (site for site in ffi.sites() if site["ranks"] == self._ranks and not site["work_s"])


def busiest(calls: Mapping[tuple[str, Site], Calls]) -> tuple[str, Site] | None:
    """The plan and site that moved most bytes since the previous `look`; None if there was no call."""
    lately = {key: each.lately * key[1][2] for key, each in calls.items() if each.lately}
    return max(lately, key=lambda key: (lately[key], key), default=None)


def _key(site: Mapping[str, Any]) -> Site:
    return site["name"], site["axes"], site["bytes"]
