"""What a run's own calls say: who arrives when, and how long they take from there on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm import ffi

_KEPT = 64  # calls of a site, the latest ones

Site = tuple[str, str, int]  # name, axes and bytes


class Calls(NamedTuple):
    """The latest calls of a site.

    Attributes:
      number: of all since the mark.
      arrivals: seconds after the first rank; a row for each call, a column for each rank.
      after_s: seconds from the last arrival to the end, for each call.
    """

    number: int
    arrivals: NDArray[np.float64]
    after_s: NDArray[np.float64]


class Watch:
    """The all-reduces over all ranks that follow plans of the run, since a mark."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._marks: dict[tuple[str, Site], int] = {}

    def mark(self) -> None:
        """Counts from now on."""
        self._marks = {(site["plan"], _key(site)): site["calls"] for site in self._sites()}

    def calls(self, plan: str) -> dict[Site, Calls]:
        """Those under a plan, by their sites.

        Args:
          plan: its name in statistics; "auto" for none.
        """
        found = {}
        for site in self._sites():
            marked = self._marks.get((plan, _key(site)), 0)
            number = site["calls"] - (marked if marked <= site["calls"] else 0)  # statistics may have been reset
            rows = min(number, _KEPT, len(site["arrivals"]))
            if site["plan"] == plan and rows > 0:
                latest = np.array(site["arrivals"][-rows:]), np.array(site["after_arrival_s"][-rows:])
                found[_key(site)] = Calls(number, *latest)
        return found

    def _sites(self) -> Iterable[Mapping[str, Any]]:
        return (site for site in ffi.stats() if site["ranks"] == self._ranks and not site["own_s"])


def busiest(calls: Mapping[Site, Calls]) -> Site | None:
    """The site that moved most bytes."""
    return max(calls, key=lambda site: (calls[site].number * site[2], site), default=None)


def _key(site: Mapping[str, Any]) -> Site:
    return site["name"], site["axes"], site["bytes"]
