"""A profile of a run from its own statistics: the arrivals at its sums, and their times by size.

Also the importer of the file that `jaxcomm.stats().save(path)` writes.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from jaxcomm import files
from jaxcomm.errors import ProfileError
from jaxcomm.profile import schema
from jaxcomm.profile.files import validate
from jaxcomm.profile.fit import fit
from jaxcomm.profile.racks_and_rails import Sample, rail_shares
from jaxcomm.profile.run_file import FORMAT, KIND, VERSION, RunSite, SavedRun, decode, load
from jaxcomm.profile.schema import Collective, Profile, Provenance

NAME: Final = "a run's statistics"
TOOL: Final = "jaxcomm.stats()"
LOOKED_FOR: Final = f'"format": "{FORMAT}"'

_NO_SUMS: Final = ("all_gather", "psum_scatter")
_NO_PLAN: Final = ("direct", "ring", "auto")


def from_stats(
    stats: Sequence[Mapping[str, Any]] | str | os.PathLike[str] | None = None, *, site: str | None = None
) -> Profile:
    """The profile of a run, from its own sums.

    The arrivals are those of one call site: the one that moves most bytes in all its calls, or the one that is named;
    the first call that is kept counts as warm-up. α and β are fitted to the times from the last arrival to the end, a
    median for each size that was summed without a plan among as many ranks; with one size α is assumed (see `fit`),
    and a plan considers no schedule that uses a delay. It has the shares of the run's rails, and hosts where
    each rank is on one of its own.

    Args:
      stats: the result of `jaxcomm.stats()`, or the file that `jaxcomm.stats().save(path)` wrote; None: what
        `jaxcomm.stats()` returns now.
      site: the name of a call site, as `jaxcomm.stats()` shows it.

    Returns:
      The profile.

    Raises:
      ProfileError: the file cannot be read, a value that cannot be, no sum that was called twice, none of that name, or
        none without a plan.
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
    """Whether the bytes look like saved statistics, of whatever version and however broken."""
    return data.lstrip()[:1] == b"{" and FORMAT.encode() in data


def read(data: bytes, where: str, created: str) -> Profile:
    """The profile of saved statistics, as `from_stats`.

    Args:
      data: the file's bytes.
      where: its name.
      created: when it was written.

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
        # Only in groups that change, which `_sums` leaves out, is the arrival of a rank not known.
        "arrivals": [[at for at in call if at is not None] for call in watched.arrivals[1:]],
        "warmup_dropped": 1,
        "rail_shares": _rail_shares(run),
        "hosts": _hosts(run, watched.ranks),
        "collective": Collective(bytes=watched.bytes, seconds=median(watched.after_arrival_s)),
        "provenance": Provenance(source=source[:4096], tool=TOOL, created=created),
    }
    return validate(found, where)


def _rail_shares(run: SavedRun) -> dict[str, float]:
    """The rails' shares of a large buffer, to the processes to which no rail was lost when the run was saved."""
    lost = {each.process for each in run.rails if not each.is_open}
    return rail_shares((each.rail, each.shares[-1][1]) for each in run.rails if each.process not in lost)


def _hosts(run: SavedRun, ranks: int) -> list[str]:
    """A host for each rank, where rails lead to every other process and each of these is on a host of its own."""
    hosts = {each.process: each.host for each in run.rails}
    alone = len(hosts) == ranks - 1 and all(host == process for process, host in hosts.items())
    return [f"host {rank}" for rank in range(ranks)] if alone else []


def _watched(run: SavedRun, where: str, name: str | None) -> RunSite:
    """The site whose arrivals count."""
    sums = _sums(run)
    if not sums:
        problem = "holds no sum that was called twice"
        cure = "save it after some steps; collectives that are jax.lax's (on GPUs and TPUs, mostly) are not recorded"
        raise ProfileError(files.mistake(where, problem, cure))
    named = [site for site in sums if name in (None, site.name)]
    if not named:
        problem = f"holds no sum {name!r}; it holds {', '.join(sorted({site.name for site in sums}))}"
        raise ProfileError(files.mistake(where, problem, "name one of these, or none"))
    return max(named, key=lambda site: site.bytes * site.calls)


def _sums(run: SavedRun) -> list[RunSite]:
    """The sites whose calls are sums over all of their ranks, with bytes, and more than one of them kept."""
    return [
        site
        for site in run.sites
        if site.name not in _NO_SUMS and site.ranks > 1 and site.bytes and not site.work_s
        if len(site.arrivals) > 1 and site.after_arrival_s
    ]
