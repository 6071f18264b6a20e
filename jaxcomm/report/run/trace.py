"""A run over time as a trace for ui.perfetto.dev and chrome://tracing.

The trace has four groups of tracks: the rails' traffic and fences, late ranks, times of calls, and the plans that calls
followed. Viewers show each group as a process.
"""

from __future__ import annotations

from collections.abc import Iterator

from jaxcomm.profile.run_file import RunRail, RunSite, SavedRun
from jaxcomm.report import trace
from jaxcomm.report.run import series as run_series
from jaxcomm.report.run.series import NO_PLAN
from jaxcomm.report.trace import Event

_RAILS, _LATE, _CALLS, _PLANS = 1, 2, 3, 4


def of_run(run: SavedRun) -> str:
    """The trace of a run, from the records of its file."""
    events: list[Event] = []
    for number, rail in enumerate(run.rails):
        events += _rail(rail, number, run_series.extent(run))
    for site in run_series.watched(run):
        events += _late(site)
    for key, steps in run_series.transfers(run, len(run.sites)).items():
        events += [_counter(_CALLS, str(key), each.begin, ms=1e3 * each.value) for each in steps]
    for track, (plan, intervals) in enumerate(run_series.plans(run).items()):
        name = "no plan" if plan in NO_PLAN else plan
        events.append(trace.track_name(_PLANS, track, name))
        events += [trace.slice_of(name, "plan", _PLANS, track, each.begin, each.end - each.begin) for each in intervals]
    for event in run.events:
        instant = {"ph": "i", "s": "p", "name": event.outcome, "cat": "plan", "pid": _PLANS, "tid": 0}
        events.append(instant | {"ts": _microseconds(event.at_s), "args": {"text": event.text}})
    titles = {_RAILS: "rails", _LATE: "late ranks", _CALLS: "from the last arrival to the end", _PLANS: "plans"}
    used = {event["pid"] for event in events}
    names = [trace.process_name(process, name) for process, name in titles.items() if process in used]
    return trace.document([*names, *events])


def _rail(rail: RunRail, track: int, extent: tuple[float, float]) -> Iterator[Event]:
    name = f"{rail.rail} to process {rail.process}"
    yield trace.track_name(_RAILS, track, name)
    for each in run_series.closed(rail, *extent):
        yield trace.slice_of("fenced", "rail", _RAILS, track, each.begin, each.end - each.begin, why=each.word)
    for each in run_series.shares(rail, extent[1]):
        yield _counter(_RAILS, f"share of {name}", each.begin, percent=100 * each.value)
    for span in rail.spans:
        yield _counter(_RAILS, f"{name}, MB/s", span.at_s, carried=span.bytes / span.length_s / 1e6)
        if span.bytes_per_s is not None:
            yield _counter(_RAILS, f"rate of {name}, MB/s", span.at_s, found=span.bytes_per_s / 1e6)


def _late(site: RunSite) -> Iterator[Event]:
    for span in site.spans:
        late = {f"rank {rank}": 1e3 * at for rank, at in enumerate(span.arrivals) if at is not None}
        yield _counter(_LATE, f"ms after the first rank, {site.name}, {site.bytes} bytes", span.at_s, **late)


def _counter(process: int, name: str, seconds: float, **values: float) -> Event:
    return {"ph": "C", "name": name, "pid": process, "tid": 0, "ts": _microseconds(seconds), "args": values}


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 3)
