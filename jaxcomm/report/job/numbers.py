"""The state of a running job, from the snapshots of its processes.

Every process of a job knows the arrivals of all ranks, also of ranks on other hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxcomm.ffi.shares import UNITS
from jaxcomm.report.run import sites as run_sites
from jaxcomm.report.run.sites import LateRank
from jaxcomm.report.tables import bytes_text

Record = Mapping[str, Any]


@dataclass(frozen=True)
class JobProcess:
    """A process that answered. `answered_s` is the time in seconds since its latest snapshot."""

    process: int
    pid: int
    host: str
    answered_s: float


@dataclass(frozen=True)
class JobSite:
    """A call site.

    `wait_s` and `transfer_s` are medians of the last calls, None if unknown. `calls_per_s` is None before the second
    reading. `trial` is the trial of the plan in words.
    """

    name: str
    axes: str
    plan: str
    ranks: int
    bytes: int
    calls: int
    failed: int
    calls_per_s: float | None
    wait_s: float | None
    transfer_s: float | None
    late: LateRank | None
    trial: str | None


@dataclass(frozen=True)
class JobRank:
    """A rank of the call site whose ranks wait most, in the site's latest calls.

    `last` is the share of these calls in which the rank arrived last. `wait_s` is the rank's mean wait for the last
    rank.
    """

    rank: int
    last: float
    wait_s: float


@dataclass(frozen=True)
class JobRail:
    """A rail of these processes. `is_open` of its `connections` are open; `share` is its share of large calls."""

    rail: str
    is_open: int
    connections: int
    fences: int
    bytes: int
    bytes_per_s: float | None
    share: float


@dataclass(frozen=True)
class JobPlan:
    """A plan that calls over `axes` follow. If `axes` is "", calls over all axes follow it."""

    axes: str
    plan: str
    since_s: float


@dataclass(frozen=True)
class JobEvent:
    """An error, a change of generation, or an action of plan="auto", `ago_s` seconds ago."""

    ago_s: float
    text: str
    is_error: bool


@dataclass(frozen=True)
class RunningJob:
    """A job. `name` is its coordinator's address, or the PID of a process that is in no job.

    `size` is the job's number of processes. `processes` are those on the hosts that were asked for snapshots.

    `waiting_site` is, in words, the site whose ranks wait most, and `ranks` are the ranks of this site.
    """

    name: str
    program: str
    size: int
    running_s: float
    processes: list[JobProcess]
    plans: list[JobPlan]
    waiting_site: str
    ranks: list[JobRank]
    sites: list[JobSite]
    rails: list[JobRail]
    events: list[JobEvent]


def jobs(snapshots: Iterable[Record], before: Iterable[Record]) -> list[RunningJob]:
    """The jobs of these processes. Jobs with calls come before jobs without calls, and newer jobs before older ones.

    Args:
      snapshots: one per process.
      before: the snapshots of the previous reading.
    """
    by_job: dict[str, list[Record]] = {}
    for each in sorted(snapshots, key=lambda each: (each["job"], each["process"], each["pid"])):
        by_job.setdefault(each["job"] or str(each["pid"]), []).append(each)
    earlier = {each["socket"]: each for each in before}
    found = [_job(name, processes, earlier) for name, processes in by_job.items()]
    return sorted(found, key=lambda job: (not job.sites, job.running_s))


def _job(name: str, processes: Sequence[Record], before: Mapping[str, Record]) -> RunningJob:
    first = processes[0]
    waiting_site, ranks = _ranks(first["sites"])
    return RunningJob(
        name=name,
        program=" ".join(first["program"]),
        size=first["processes"],
        running_s=max(each["at_s"] for each in processes),
        processes=[JobProcess(each["process"], each["pid"], each["host"], each["answered_s"]) for each in processes],
        plans=[JobPlan(", ".join(p["axes"]), p["plan"], first["at_s"] - p["since_s"]) for p in first["plans"]],
        waiting_site=waiting_site,
        ranks=ranks,
        sites=_sites(processes, before),
        rails=_rails(processes, before),
        events=sorted(_events(processes), key=lambda event: -event.ago_s),
    )


def _sites(processes: Sequence[Record], before: Mapping[str, Record]) -> list[JobSite]:
    """The sites, in descending order of the time that ranks spend in their calls."""
    by_label: dict[tuple[str, str, str, int, int], list[tuple[Record, Record]]] = {}
    for process in processes:
        for site in process["sites"]:
            if site["calls"] or site["failed"]:
                by_label.setdefault(_label(site), []).append((process, site))
    found = []
    for records in by_label.values():
        calls = max(site["calls"] for _, site in records)
        failed = max(site["failed"] for _, site in records)
        process, site = max(records, key=lambda each: sum(each[1]["wait_s"]))  # the group that waits most
        timing = run_sites.timing(site)
        earlier, seconds = _earlier_site(process, site, before)
        per_s = (site["calls"] - earlier["calls"]) / seconds if earlier is not None else None
        trial = run_sites.trial_text(site.get("trial"))
        spent = calls * ((timing.wait_s or 0.0) + (timing.transfer_s or 0.0))
        row = JobSite(*_label(site), calls, failed, per_s, timing.wait_s, timing.transfer_s, timing.late, trial)
        found.append((spent, row))
    return [row for _, row in sorted(found, key=lambda each: -each[0])]


def _label(site: Record) -> tuple[str, str, str, int, int]:
    return site["name"], site["axes"], site["plan"], site["ranks"], site["bytes"]


def _earlier_site(process: Record, site: Record, before: Mapping[str, Record]) -> tuple[Record | None, float]:
    """The site's record in the previous snapshot and the seconds since then; None if there is no such record."""
    earlier = before.get(process["socket"])
    if earlier is None or earlier["at_s"] >= process["at_s"]:
        return None, 0.0
    record = next((each for each in earlier["sites"] if _label(each) == _label(site)), None)
    if record is None or record["calls"] > site["calls"]:  # the statistics were reset
        return None, 0.0
    return record, process["at_s"] - earlier["at_s"]


def _ranks(sites: Iterable[Record]) -> tuple[str, list[JobRank]]:
    """The site whose ranks wait most, in words, and its ranks, beginning with the rank that is last most often."""
    known = [site for site in sites if run_sites.knows_arrivals(site)]
    if not known:
        return "", []
    site = max(known, key=lambda each: sum(each["wait_s"]))
    arrivals = np.array(site["arrivals"])
    last = np.bincount(arrivals.argmax(axis=1), minlength=site["ranks"]) / len(arrivals)
    waits = (arrivals.max(axis=1, keepdims=True) - arrivals).mean(axis=0)
    rows = [JobRank(rank, *each) for rank, each in enumerate(zip(last.tolist(), waits.tolist(), strict=True))]
    words = f"{site['name']} over {site['axes']}, {bytes_text(site['bytes'])}"
    return words, sorted(rows, key=lambda row: (-row.last, row.wait_s))


def _rails(processes: Sequence[Record], before: Mapping[str, Record]) -> list[JobRail]:
    """The rails by name, summed over all connections of these processes."""
    by_name: dict[str, list[Record]] = {}
    sent: dict[str, int] = {}
    seconds = 0.0
    for process in processes:
        earlier = before.get(process["socket"], process)
        seconds = max(seconds, process["at_s"] - earlier["at_s"])
        old = {(each["process"], each["rail"]): each["bytes"] for each in earlier["rails"]}
        for rail in process["rails"]:
            by_name.setdefault(rail["rail"], []).append(rail)
            more = rail["bytes"] - old.get((rail["process"], rail["rail"]), 0)
            sent[rail["rail"]] = sent.get(rail["rail"], 0) + max(0, more)
    return [
        JobRail(
            name,
            sum(rail["is_open"] for rail in rails),
            len(rails),
            sum(rail["fences"] for rail in rails),
            sum(rail["bytes"] for rail in rails),
            sent[name] / seconds if seconds else None,
            sum(rail["shares"][-1][1] for rail in rails) / (UNITS * len(rails)),
        )
        for name, rails in sorted(by_name.items())
    ]


def _events(processes: Sequence[Record]) -> Iterator[JobEvent]:
    """The events of all processes. An event that several processes noticed is yielded once."""
    gone: dict[int, JobEvent] = {}
    generations: dict[tuple[int, ...], JobEvent] = {}
    for process in processes:
        for record in process["gone"]:
            ago = process["answered_s"] + (process["now_us"] - record["at_us"]) / 1e6
            reason = (record["why"].splitlines() or [""])[0]
            gone.setdefault(record["process"], JobEvent(ago, reason, not record["has_left"]))
        for record in process["generations"]:
            ago = process["answered_s"] + process["at_s"] - record["at_s"]
            key = (*record["left"], -1, *record["joined"], -1, *record["processes"])
            text = run_sites.generation_text(record)
            generations.setdefault(key, JobEvent(ago, text, bool(record["error"])))
        for record in process["events"]:
            ago = process["answered_s"] + process["at_s"] - record["at_s"]
            yield JobEvent(ago, record["text"].splitlines()[0], record["outcome"] == "failed")
    yield from (*gone.values(), *generations.values())
