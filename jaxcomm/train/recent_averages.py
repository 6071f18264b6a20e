"""Statistics of the latest averages in groups, for the ranks of this process or of all processes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

_OF_RANKS: Final = ("work_s", "in_step_s")  # the attributes with a column per rank that `text` passes to `merge`

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RecentAverages:
    """The latest averages; NaN stands for unknown values of a rank.

    Attributes:
      calls: the number of the last average.
      work_s: seconds of each rank's own work before an average, [averages, ranks].
      in_step_s: seconds of each rank's own work since the last rank of its process left the previous average,
        [averages, ranks].
      arrivals: seconds from the first arrival that a rank's process knows to the rank's arrival, [averages, ranks].
      after_s: seconds from the last arrival to the end, in the slowest group, [averages].
    """

    calls: int
    work_s: Floats
    in_step_s: Floats
    arrivals: Floats
    after_s: Floats

    @classmethod
    def read(cls, sites: Sequence[Mapping[str, Any]], ranks: int, steps: int) -> Self:
        """Reads at most `steps` of the latest averages, from the site with the largest averages over `ranks` ranks."""
        ours = [site for site in sites if (site["plan"], site["ranks"]) == ("groups", ranks) and site["work_s"]]
        if not ours:
            return cls._none(ranks)
        most = max(ours, key=lambda site: site["bytes"])
        own = np.array(most["work_s"][-steps:], np.float64)
        arrivals = np.array(most["arrivals"][-len(own) :], np.float64)
        in_step = arrivals + np.nanmin(own - arrivals, axis=1, keepdims=True)
        in_step[np.isnan(own)] = np.nan
        arrivals[np.isfinite(arrivals).sum(axis=1) < 2] = np.nan  # one known arrival is neither early nor late
        return cls(most["calls"], own, in_step, arrivals, np.array(most["after_arrival_s"][-len(own) :], np.float64))

    @classmethod
    def merge(cls, texts: Sequence[str]) -> Self:
        """The averages that all processes have recorded. `texts` has each process's `text`."""
        found = [json.loads(text) for text in texts]
        last = min(each["calls"] for each in found)
        ends = [len(each["after_s"]) - (each["calls"] - last) for each in found]
        count = max(min(ends), 0)
        here = [each["ranks"] for each in found]
        if not count or sorted(itertools.chain(*here)) != [*range(sum(map(len, here)))]:
            return cls._none(0)
        rows = [slice(end - count, end) for end in ends]
        order = np.argsort([*itertools.chain(*here)])
        own, in_step = (
            np.hstack([np.array(each[name][row], np.float64) for each, row in zip(found, rows, strict=True)])[:, order]
            for name in _OF_RANKS
        )
        after = np.max([each["after_s"][row] for each, row in zip(found, rows, strict=True)], axis=0)
        unknown = np.full_like(own, np.nan)  # arrivals of different processes have no common time origin
        return cls(last, own, in_step, unknown, after)

    @classmethod
    def _none(cls, ranks: int) -> Self:
        empty = np.empty((0, ranks))
        return cls(0, empty, empty, empty, np.empty(0))

    def text(self) -> str:
        """The averages of this process's ranks, for `merge`."""
        here = np.flatnonzero(np.isfinite(self.work_s).all(axis=0)) if len(self.work_s) else np.empty(0, int)
        of_ranks = {name: getattr(self, name)[:, here].round(7).tolist() for name in _OF_RANKS}
        after = self.after_s.round(7).tolist()
        return json.dumps({"calls": self.calls, "ranks": here.tolist(), "after_s": after} | of_ranks)

    @property
    def steps(self) -> int:
        """The number of averages for which all ranks' own work is known."""
        return len(self.work_s) if np.isfinite(self.work_s).all() else 0

    @property
    def step_s(self) -> float:
        """Seconds of a step, for the median rank."""
        return float(np.median(self.work_s) + np.median(self.after_s))

    @property
    def average_s(self) -> float:
        """Mean seconds of an average from the last arrival to the end; a mean, because times differ within a period."""
        return float(self.after_s.mean())

    @property
    def late_s(self) -> Floats:
        """For each rank, the seconds by which its work exceeds the median rank's work in three of four steps.

        The work is counted in up to three ways: from when the rank itself left the previous average; from a common time
        for all ranks of a process, in case the host synchronises these ranks; and from a common time for all ranks, in
        case another collective synchronises them. The way with the lateness that varies least between steps is used.
        """
        works = [self.work_s, self.in_step_s]
        if np.isfinite(self.arrivals).any(axis=0).all():
            works.append(self.arrivals)
        known = [work[np.isfinite(work).any(axis=1)] for work in works]
        lateness = [work - np.nanmedian(work, axis=1, keepdims=True) for work in known]
        found: Floats = np.nanquantile(min(lateness, key=_unsteadiness), 0.25, axis=0).clip(min=0)
        return found


def _unsteadiness(lateness: Floats) -> float:
    return float(np.nanmean(np.abs(lateness - np.nanmedian(lateness, axis=0))))
