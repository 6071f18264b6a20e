"""Time series of a saved run, as intervals and grids. Pictures, traces and TensorBoard files use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.ffi.shares import UNITS
from jaxcomm.profile.run_file import RailSpan, RunRail, RunSite, SavedRun, SiteSpan
from jaxcomm.report.tables import bytes_text

Numbers = NDArray[np.float64]

NO_PLAN: Final = ("direct", "ring", "auto", "lax", "")
_PAUSE: Final = 0.03  # longest pause that is ignored, as a share of the whole run


class Interval(NamedTuple):
    """A span of the run in seconds, with the value or the word of a series during this span."""

    begin: float
    end: float
    value: float = 0.0
    word: str = ""


class SiteKey(NamedTuple):
    """The name, axes and bytes of call sites. Call sites with the same key differ only in their plan."""

    name: str
    axes: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.name} over {self.axes}, {bytes_text(self.bytes)}"


class TimeGrid(NamedTuple):
    """Columns of equal length over the time of a run."""

    begin: float
    end: float
    columns: int

    @property
    def width(self) -> float:
        """The length of a column in seconds."""
        return (self.end - self.begin) / self.columns

    def intervals(self, values: Numbers) -> list[Interval]:
        """The columns whose value is not NaN, as intervals."""
        begins = np.linspace(self.begin, self.end, self.columns + 1)
        pairs = zip(begins[:-1].tolist(), values.tolist(), strict=True)
        return [Interval(begin, begin + self.width, value) for begin, value in pairs if not np.isnan(value)]

    def overlaps(self, begin: float, length: float) -> Numbers:
        """For each column, the seconds of the column that lie in a span. A span counts as at least 1 µs long."""
        edges = np.linspace(self.begin, self.end, self.columns + 1)
        span = max(length, 1e-6)
        seconds: Numbers = np.clip(np.minimum(edges[1:], begin + span) - np.maximum(edges[:-1], begin), 0, None)
        return seconds


def extent(run: SavedRun) -> tuple[float, float]:
    """The first and the last recorded time in seconds, at least a millisecond apart."""
    spans: list[SiteSpan | RailSpan] = [span for site in run.sites for span in site.spans]
    spans += [span for rail in run.rails for span in rail.spans]
    moments = [*(span.at_s for span in spans), *(event.at_s for event in run.events)]
    begin = min(moments, default=0.0)
    return begin, max(run.at_s, begin + 1e-3, *moments)


def shares(rail: RunRail, end: float) -> list[Interval]:
    """The rail's share of the largest calls, from 0 to 1; one interval per change."""
    changed = [(span.at_s, span.share / UNITS) for span in rail.spans if span.share is not None]
    ends = [*(at for at, _ in changed[1:]), end]  # one item more than `changed` if `changed` is empty
    return [Interval(at, until, part) for (at, part), until in zip(changed, ends, strict=False)]


def closed(rail: RunRail, begin: float, end: float) -> list[Interval]:
    """The intervals in which the rail was fenced. Each interval's `word` is the reason for the fence."""
    found, since, why = [], begin, ""
    is_open = not rail.changes or not rail.changes[0].is_open
    for change in rail.changes:
        if change.is_open and not is_open:
            found.append(Interval(since, change.at_s, word=why))
        elif not change.is_open and is_open:
            since, why = change.at_s, change.why
        is_open = change.is_open
    return found + [Interval(since, end, word=why)] * (not is_open)


def carried(rails: Sequence[RunRail], grid: TimeGrid) -> list[Interval]:
    """Bytes per second that these rails carried together."""
    total = np.zeros(grid.columns)
    for rail in rails:
        for span in rail.spans:
            overlap = grid.overlaps(span.at_s, _length(span, grid.end))
            total += span.bytes * overlap / max(overlap.sum(), 1e-12)
    return grid.intervals(total / grid.width)


def rates(rails: Sequence[RunRail], grid: TimeGrid) -> list[Interval]:
    """The mean rate over these rails, in bytes per second. A rail counts with its latest measured rate."""
    ends = np.linspace(grid.begin, grid.end, grid.columns + 1)[1:]
    total, known = np.zeros(grid.columns), np.zeros(grid.columns)
    for rail in rails:
        found = [(span.at_s, span.bytes_per_s) for span in rail.spans if span.bytes_per_s is not None]
        last = np.searchsorted([at for at, _ in found], ends)
        values = np.array([np.nan, *(rate for _, rate in found)])[last]
        total += np.nan_to_num(values)
        known += ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return grid.intervals(np.where(known > 0, total / known, np.nan))


def watched(run: SavedRun) -> list[RunSite]:
    """Sites that show late ranks: all ranks wait for the last one there, and no other such site has more ranks."""
    sites = [site for site in run.sites if site.spans and not site.work_s and site.ranks > 1]
    most = max((site.ranks for site in sites), default=0)
    return [site for site in sites if site.ranks == most]


def lateness(run: SavedRun, grid: TimeGrid) -> Numbers:
    """Mean seconds by which each rank arrived after the first rank. One row per rank; NaN where no call ran."""
    sites = watched(run)
    ranks = sites[0].ranks if sites else 0
    late, calls = np.zeros((ranks, grid.columns)), np.zeros(grid.columns)
    for site in sites:
        for span in site.spans:
            overlap = grid.overlaps(span.at_s, _length(span, grid.end))
            weight = span.calls * overlap / max(overlap.sum(), 1e-12)
            arrivals = [0.0 if at is None else at for at in span.arrivals]
            late += np.outer(arrivals, weight)
            calls += weight
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(calls > 0, late / calls, np.nan)


def transfers(run: SavedRun, most: int) -> dict[SiteKey, list[Interval]]:
    """Times of calls from the last arrival to the end, for the sites that moved the most bytes, all plans together.

    Args:
      run: the run.
      most: the greatest number of sites.
    """
    moved: dict[SiteKey, int] = {}
    for site in run.sites:
        key = SiteKey(site.name, site.axes, site.bytes)
        moved[key] = moved.get(key, 0) + site.bytes * site.calls
    found = {}
    for key in sorted((key for key, total in moved.items() if total), key=lambda key: -moved[key])[:most]:
        spans = [span for site in run.sites if (site.name, site.axes, site.bytes) == key for span in site.spans]
        steps = [Interval(span.at_s, span.at_s + span.length_s, span.after_arrival_s) for span in spans]
        found[key] = sorted(steps)
    return found


def plans(run: SavedRun) -> dict[str, list[Interval]]:
    """For each plan, by its name in statistics: the intervals in which calls ran under it. Short pauses are ignored."""
    begin, end = extent(run)
    found: dict[str, list[Interval]] = {}
    for site in run.sites:
        found.setdefault(site.plan, []).extend(
            Interval(span.at_s, span.at_s + span.length_s) for span in site.spans if span.calls
        )
    joined = {
        plan: list(_joined(sorted(intervals), _PAUSE * (end - begin))) for plan, intervals in found.items() if intervals
    }
    return dict(sorted(joined.items(), key=lambda item: item[1][0].begin))


def _joined(intervals: Sequence[Interval], pause: float) -> Iterator[Interval]:
    now = intervals[0]
    for each in intervals[1:]:
        if each.begin <= now.end + pause:
            now = now._replace(end=max(now.end, each.end))
        else:
            yield now
            now = each
    yield now


def _length(span: SiteSpan | RailSpan, end: float) -> float:
    """The length of a span in seconds. The last span is cut at `end`, the time at which the file was written."""
    return min(span.length_s, end - span.at_s)
