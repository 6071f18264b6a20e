"""Makes a profile of a run from the run's statistics: the arrivals at its sums, and the sums' times by size.

This module is also the importer of the file that `jaxcomm.stats().save(path)` writes.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from jaxcomm import files
from jaxcomm.errors import ProfileError
from jaxcomm.profile import schema
from jaxcomm.profile.files import validate
from jaxcomm.profile.fit import fit
from jaxcomm.profile.racks_and_rails import Sample, rail_shares
from jaxcomm.profile.run_file import FORMAT, KIND, VERSION, RunSite, SavedRun, ScheduleFrom, decode, load
from jaxcomm.profile.schema import Collective, Profile, Provenance
from jaxcomm.profile.timed_schedules import WHOLE, TriedSchedule

NAME: Final = "a run's statistics"
TOOL: Final = "jaxcomm.stats()"
LOOKED_FOR: Final = f'"format": "{FORMAT}"'

MAX_TRIALS: Final = 256  # maximum number of trials in a profile; trials at the sites that move the most bytes are kept
_NO_SUMS: Final = ("all_gather", "psum_scatter")
_NO_PLAN: Final = ("direct", "ring", "auto", "lax")


def from_stats(
    stats: Sequence[Mapping[str, Any]] | str | os.PathLike[str] | None = None, *, site: str | None = None
) -> Profile:
    """The profile of a run, from its own sums.

    The arrivals come from one call site: the site named `site`, or else the site whose calls together move the most
    bytes. The first recorded call of this site counts as warm-up. α and β are fitted to times from the last arrival to
    the end of a call. Each site that sums without a plan among the same number of ranks gives one median time. If these
    sites have only one size, α is assumed (see `fit`), and plans from this profile treat no rank as late. The profile
    has the shares of the run's rails. It names hosts if each rank is on its own host.

    Args:
      stats: the result of `jaxcomm.stats()`, or the file that `jaxcomm.stats().save(path)` wrote; None: the current
        `jaxcomm.stats()`.
      site: the name of a call site, as `jaxcomm.stats()` shows it.

    Returns:
      The profile.

    Raises:
      ProfileError: the file cannot be read, a value is invalid, no sum was called twice, no sum has the name `site`, or
        no sum ran without a plan.
    """
    if isinstance(stats, str | os.PathLike):
        return _profile(load(stats), os.fspath(stats), _now(), site)
    rails = getattr(stats, "rails", [])
    if stats is None:
        from jaxcomm import ffi

        stats, rails = ffi.sites(), [{**rail, "spans": [], "changes": []} for rail in ffi.rails()]
    document = {"format": FORMAT, "version": VERSION, "sites": [dict(record) for record in stats], "rails": rails}
    return _profile(KIND.validate(document, "jaxcomm.stats()"), "jaxcomm.stats()", _now(), site)


def sniff(data: bytes) -> bool:
    """Whether the bytes look like saved statistics, of any version and even if broken."""
    return data.lstrip()[:1] == b"{" and re.search(rb'"format"\s*:\s*"' + FORMAT.encode() + b'"', data) is not None


def read(data: bytes, where: str, created: str) -> Profile:
    """The profile of saved statistics, as `from_stats` makes it.

    Args:
      data: the file's bytes.
      where: the file's name.
      created: when the file was written.

    Raises:
      ProfileError: see `from_stats`.
    """
    return _profile(decode(data, where), where, created, None)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _profile(run: SavedRun, where: str, created: str, name: str | None) -> Profile:
    watched = _watched(run, where, name)
    alike = [site for site in _sums(run) if site.ranks == watched.ranks and site.plan in _NO_PLAN]
    if not alike:
        problem = f"no sum among {watched.ranks} ranks ran without a plan, so α and β are unknown"
        raise ProfileError(files.mistake(where, problem, "run some steps under `with jaxcomm.use_plan(None)`"))
    samples = [Sample(bytes=site.bytes, seconds=median(site.after_arrival_s)) for site in alike]
    calls = f"{where}: {sum(site.calls for site in alike)} sums without a plan, from the last arrival"
    source = f"{where}: {watched.name} over {watched.axes}, {watched.bytes} bytes, {watched.plan}"
    found = {
        "format": schema.FORMAT,
        "version": schema.VERSION,
        "ranks": watched.ranks,
        "link": fit(samples, "all_reduce", watched.ranks, calls, "direct"),
        "arrivals": watched.arrivals[1:],
        "warmup_dropped": 1,
        "rail_shares": _rail_shares(run),
        "hosts": _hosts(run, watched.ranks),
        "collective": Collective(bytes=watched.bytes, seconds=median(watched.after_arrival_s)),
        "trials": trials(run, watched.ranks),
        "provenance": Provenance(source=source[:4096], tool=TOOL, created=created),
    }
    return validate(found, where)


def trials(run: SavedRun, ranks: int) -> list[TriedSchedule]:
    """The completed trials of plans' schedules for all-reduces among `ranks` ranks.

    Trials of a plan's entries with a selector are left out. If several sites tried the same schedule at the same size,
    the trial of the site with the most calls is kept.
    """
    found: dict[object, tuple[int, TriedSchedule]] = {}
    for site in run.sites:
        trial, entry = site.trial, planned(run, site)
        if site.ranks != ranks or site.name in _NO_SUMS or not entry or not entry.name or entry.selector:
            continue
        if trial is None or trial.outcome == "open" or not trial.default_s or entry.name.kind in WHOLE:
            continue
        plan = next(each for each in run.plans if each.plan == site.plan)
        times = {"plan_s": trial.plan_s, "default_s": trial.default_s, "error_s": trial.error_s}
        fields = {"bytes": site.bytes, "is_kept": trial.outcome == "kept", "late": plan.roles.get("straggler")}
        tried = TriedSchedule.model_validate(entry.name.model_dump() | times | fields)
        before = found.get((tried.name, site.bytes))
        if before is None or site.calls > before[0]:
            found[tried.name, site.bytes] = site.calls, tried
    moved = sorted(found.values(), key=lambda each: -each[0] * each[1].bytes)
    return [tried for _, tried in moved[:MAX_TRIALS]]


def planned(run: SavedRun, site: RunSite) -> ScheduleFrom | None:
    """The entry of the site's plan that the site's calls follow; None if the run's record lacks the entry."""
    plan = next((each for each in run.plans if each.plan == site.plan), None)
    entries = [each for each in (plan.collectives if plan else ()) if each.min_bytes <= site.bytes]
    return max(entries, key=lambda each: each.min_bytes, default=None)


def _rail_shares(run: SavedRun) -> dict[str, float]:
    """The rails' shares of a large buffer, over the processes to which all rails were open when the run was saved."""
    lost = {each.process for each in run.rails if not each.is_open}
    return rail_shares((each.rail, each.shares[-1][1]) for each in run.rails if each.process not in lost)


def _hosts(run: SavedRun, ranks: int) -> list[str]:
    """One host name per rank if rails lead to all other processes and each process has its own host; else empty."""
    hosts = {each.process: each.host for each in run.rails}
    alone = len(hosts) == ranks - 1 and all(host == process for process, host in hosts.items())
    return [f"host {rank}" for rank in range(ranks)] if alone else []


def _watched(run: SavedRun, where: str, name: str | None) -> RunSite:
    """The site from which the profile takes the arrivals."""
    sums = _sums(run)
    if not sums:
        problem = "holds no sum that was called twice"
        cure = "save it after some steps; those of jax.lax (on GPUs, mostly) are recorded only with JAXCOMM_ARRIVALS=1"
        raise ProfileError(files.mistake(where, problem, cure))
    named = [site for site in sums if name in (None, site.name)]
    if not named:
        problem = f"holds no sum {name!r}; it holds {', '.join(sorted({site.name for site in sums}))}"
        raise ProfileError(files.mistake(where, problem, "name one of these, or none"))
    return max(named, key=lambda site: site.bytes * site.calls)


def _sums(run: SavedRun) -> list[RunSite]:
    """The sites that have more than one recorded call, and whose calls sum bytes over all ranks of the site."""
    return [
        site
        for site in run.sites
        if site.name not in _NO_SUMS and site.ranks > 1 and site.bytes and site.has_fixed_groups
        if len(site.arrivals) > 1 and site.after_arrival_s
    ]
