"""Traces for ui.perfetto.dev and chrome://tracing: a run's calls, a schedule's rounds, and parts for other traces.

The format is Chrome's JSON: complete events ("X") with times in microseconds, and metadata ("M") that names tracks.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxcomm.profile.cluster import Topology
from jaxcomm.report.tables import bytes_text
from jaxcomm.schedules import Op, Schedule
from jaxcomm.schedules.schedule import loads
from jaxcomm.simulate import phase_seconds

Event = dict[str, Any]


def of_sites(sites: Sequence[Mapping[str, Any]]) -> str:
    """The trace of a run's calls. Each site is a process of the trace, with a track per rank.

    On a rank's track, each call has a slice for the rank's wait and a slice for the transfer. A site's recorded calls
    follow one another without gaps.

    Args:
      sites: the sites of `jaxcomm.stats()`.
    """
    events = []
    for process, site in enumerate((site for site in sites if site["arrivals"]), 1):
        name = f"{site['name']} over {site['axes']}, {bytes_text(site['bytes'])}, {site['plan']}"
        events += [*_tracks(process, name, site["ranks"]), *_calls(process, site)]
    return document(events)


def of_schedule(schedule: Schedule, nbytes: int, alpha: float, beta: float, topology: Topology | None = None) -> str:
    """The trace of a schedule's predicted rounds. Each rank has a track, with one slice per round in which it receives.

    The trace assumes that the late rank arrives just as the other ranks finish the rounds before its arrival. A phase's
    time is divided among the phase's rounds as if all links had one rate.

    Args:
      schedule: any schedule.
      nbytes: bytes of one rank's buffer.
      alpha: seconds per round.
      beta: seconds per byte.
      topology: the ranks' topology, if links differ.
    """
    name = f"{schedule.kind}, {schedule.ranks} ranks, {schedule.num_chunks} chunks, {bytes_text(nbytes)}, predicted"
    events, start = list(_tracks(1, name, schedule.ranks)), 0.0
    took = phase_seconds(schedule, nbytes, alpha, beta, topology)
    for phase, phase_s in zip(schedule.phases, took, strict=True):
        if phase is schedule:
            events += [slice_of("absent", "wait", 1, rank, 0.0, start) for rank in sorted(schedule.late_ranks) if start]
        seconds = alpha + _busiest(phase) / phase.num_chunks * nbytes * beta
        seconds *= phase_s / seconds.sum() if seconds.any() else 1.0
        begins = start + np.concatenate([[0.0], np.cumsum(seconds)])
        events += _rounds(phase, begins.tolist())
        start = float(begins[-1])
    return document(events)


def _calls(process: int, site: Mapping[str, Any]) -> Iterator[Event]:
    start = 0.0
    for number, (arrivals, after) in enumerate(zip(site["arrivals"], site["after_arrival_s"], strict=True)):
        known = {rank: arrival for rank, arrival in enumerate(arrivals) if arrival is not None}
        last = max(known.values())
        for rank, arrival in known.items():
            if arrival < last:
                yield slice_of("wait", "wait", process, rank, start + arrival, last - arrival, call=number)
            yield slice_of("transfer", "transfer", process, rank, start + last, after, call=number)
        start += last + after


def _rounds(phase: Schedule, begins: Sequence[float]) -> Iterator[Event]:
    received = defaultdict(list)
    for transfer in phase.transfers():
        received[transfer.round, transfer.dst].append(transfer)
    for (number, rank), group in received.items():
        chunks, sources = ({getattr(each, name) for each in group} for name in ("chunk", "src"))
        chunks_text = f"chunk {min(chunks)}" if len(chunks) == 1 else f"{len(chunks)} chunks"
        whom = f"rank {min(sources)}" if len(sources) == 1 else f"{len(sources)} ranks"
        kind = "copy" if all(each.op == Op.COPY for each in group) else "reduce"
        seconds = begins[number + 1] - begins[number]
        about = {"round": number, "chunks": sorted(chunks), "from": sorted(sources)}
        yield slice_of(f"{kind} {chunks_text} ← {whom}", kind, 1, rank, begins[number], seconds, **about)


def _busiest(phase: Schedule) -> np.ndarray:
    """For each round, the greatest number of chunks that a rank sends or receives."""
    found = np.zeros(phase.num_rounds)
    for load in loads(phase.table()):
        np.maximum.at(found, load.round, load.chunks)
    return found


def _tracks(process: int, name: str, ranks: int) -> Iterator[Event]:
    yield process_name(process, name)
    for rank in range(ranks):
        yield track_name(process, rank, f"rank {rank}")
        yield {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": rank, "args": {"sort_index": rank}}


def process_name(process: int, name: str) -> Event:
    """Names a group of tracks."""
    return {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}


def track_name(process: int, track: int, name: str) -> Event:
    """Names a track."""
    return {"ph": "M", "name": "thread_name", "pid": process, "tid": track, "args": {"name": name}}


def slice_of(name: str, kind: str, process: int, track: int, start: float, seconds: float, **about: object) -> Event:
    """A slice of a track. `start` and `seconds` are in seconds. Viewers group slices by `kind`."""
    times = {"ts": round(1e6 * start, 3), "dur": round(1e6 * seconds, 3)}
    return {"ph": "X", "name": name, "cat": kind, "pid": process, "tid": track, **times, "args": about}


def document(events: list[Event]) -> str:
    """The text of a trace file with these events."""
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n"
