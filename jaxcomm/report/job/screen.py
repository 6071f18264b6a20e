"""A running job as a screen of tables, for terminals of 60 columns and more."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from jaxcomm.errors import load_extra
from jaxcomm.log import printable
from jaxcomm.report.job.numbers import JobEvent, JobRail, JobRank, JobSite, RunningJob
from jaxcomm.report.run.sites import late_text
from jaxcomm.report.tables import bytes_text, seconds_text

# Terminal widths, in characters, from which tables get more columns.
_MEDIUM, _WIDE = 80, 110

_SILENT_S: Final = 3.0  # a process that has not answered for this time is reported
_LONGEST_BAR: Final = 60


class _Rows(NamedTuple):
    """The numbers of rows of the sections of a screen.

    `sites` is a minimum; the other numbers are maxima. `gap` is the number of empty lines after a section.
    """

    ranks: int
    sites: int
    trials: int
    events: int
    gap: int


_HIGH, _LOW = _Rows(8, 3, 4, 5, 1), _Rows(3, 2, 1, 2, 0)


def screen(job: RunningJob, width: int, height: int | None) -> Any:
    """Returns a job as an object that a console of the package rich can print.

    Args:
      job: the job.
      width: number of columns.
      height: number of lines; rows that do not fit are left out. None shows all call sites.

    Raises:
      JaxcommError: the package rich is not installed.
    """
    console = load_extra("rich.console", "jaxcomm top")
    for most in (_HIGH, _LOW):
        above, below = _above(job, width, most), _below(job, width, most)
        others = console.Group(*above, *below)
        left = (height or sys.maxsize) - len(console.Console(width=width).render_lines(others))
        count = left - 3 - most.gap  # minus lines for the title, the header and the number of omitted sites
        if count >= min(most.sites, len(job.sites)):
            break
    count = max(count, most.sites)
    sites = [
        _text("Call sites", "bold"),
        _sites(job.sites[:count], width) if job.sites else _text("no call yet", "dim"),
    ]
    if (more := len(job.sites) - count) > 0:
        sites += [_text(f"… and {more} call sites that take less time", "dim")]
    return console.Group(*above, *_section(most, *sites), *below)


def _above(job: RunningJob, width: int, most: _Rows) -> list[Any]:
    head = _section(most, *_head(job))
    if not job.ranks:
        return head
    title = _text(f"Ranks in {job.waiting_site}", "bold")
    return head + _section(most, title, _ranks(job.ranks, width, most.ranks))


def _below(job: RunningJob, width: int, most: _Rows) -> list[Any]:
    made: list[Any] = []
    if trials := [f"{site.name}, {bytes_text(site.bytes)}: {site.trial}" for site in job.sites if site.trial]:
        texts = map(_text, trials[: most.trials])
        made += _section(most, _text("Trials of plans beside the default schedules", "bold"), *texts)
    if job.rails:
        made += _section(most, _text("Rails", "bold"), _rails(job.rails, width))
    if events := [*job.events, *_silent(job)][-most.events :]:
        made += _section(most, _text("Events", "bold"), *map(_event, events))
    return made


def _section(most: _Rows, *content: Any) -> list[Any]:
    return [*content, *[_text("")] * most.gap]


def _head(job: RunningJob) -> Iterator[Any]:
    here = f"{len(job.processes)} of {job.size} processes" if len(job.processes) < job.size else f"{job.size} processes"
    hosts = {each.host for each in job.processes}
    where = f" on {hosts.pop()}" if len(hosts) == 1 else f" on {len(hosts)} hosts"
    yield _text(job.program, "bold")
    name = f"{job.name}: {here}" if job.size > 1 else f"process {job.processes[0].pid}"
    yield _text(f"{name}{where}, running {_clock(job.running_s)}")
    plans = [f"{each.plan}{f' over {each.axes}' if each.axes else ''} for {_clock(each.since_s)}" for each in job.plans]
    yield _text(
        f"Plan {', '.join(plans)}" if plans else "No plan: calls run the default schedules", "cyan" if plans else "dim"
    )


def _ranks(ranks: Sequence[JobRank], width: int, count: int) -> Any:
    table = _table(("rank", "right"), ("last in", "right"), ("waits", "right"), ("", "left"))
    most = max(rank.wait_s for rank in ranks) or 1.0
    for rank in ranks[:count]:
        bar = "█" * round(min(width - 28, _LONGEST_BAR) * rank.wait_s / most)
        late = "bold red" if rank.last > 0.5 else ""
        table.add_row(
            _text(str(rank.rank), late),
            _text(f"{rank.last:.0%}", late),
            _text(seconds_text(rank.wait_s)),
            _text(bar, "yellow"),
        )
    if len(ranks) > count:
        table.add_row("…", "", "", _text(f"{len(ranks) - count} more", "dim"))
    return table


def _sites(sites: Sequence[JobSite], width: int) -> Any:
    medium, wide = width >= _MEDIUM, width >= _WIDE
    names = [("site", "left"), *[("axes", "left")] * wide, *[("plan", "left")] * medium, ("bytes", "right")]
    names += [*[("ranks", "right")] * wide, *[("calls", "right")] * medium, ("per s", "right")]
    names += [("wait", "right"), ("transfer", "right"), ("late", "left")]
    table = _table(*names)
    for site in sites:
        late = "-" if site.wait_s is None else "nobody"
        if site.late:
            short = f"rank {site.late.rank}, {site.late.last / site.late.calls:.0%}"
            late = late_text(site.late) if wide else short
        failed = f" {site.failed} failed" if site.failed else ""
        cells = [_text(site.name), *[_text(site.axes)] * wide, *[_text(site.plan)] * medium]
        cells += [_text(bytes_text(site.bytes)), *[_text(str(site.ranks))] * wide, *[_text(str(site.calls))] * medium]
        cells += [_text("-" if site.calls_per_s is None else f"{site.calls_per_s:.3g}")]
        cells += [_text("-" if each is None else seconds_text(each)) for each in (site.wait_s, site.transfer_s)]
        shown = _text(late, "bold red" if site.late else "")
        shown.append(failed, style="red reverse")
        table.add_row(*cells, shown)
    return table


def _rails(rails: Sequence[JobRail], width: int) -> Any:
    medium = width >= _MEDIUM
    names = [("rail", "left"), ("state", "left"), ("share", "right"), ("now", "right")]
    table = _table(*names, *[("sent", "right"), ("fences", "right")] * medium)
    for rail in rails:
        is_whole = rail.is_open == rail.connections
        state = "open" if is_whole else f"{rail.is_open} of {rail.connections} open"
        now = "-" if rail.bytes_per_s is None else f"{bytes_text(rail.bytes_per_s)}/s"
        more = [_text(bytes_text(rail.bytes)), _text(str(rail.fences))] if medium else []
        shown = _text(state, "green" if is_whole else "bold red")
        table.add_row(_text(rail.rail), shown, _text(f"{rail.share:.1%}"), _text(now), *more)
    return table


def _silent(job: RunningJob) -> Iterator[JobEvent]:
    on_hosts = len({each.host for each in job.processes}) > 1
    for each in job.processes:
        if each.answered_s > _SILENT_S:
            where = f"PID {each.pid} on {each.host}" if on_hosts else f"PID {each.pid}"
            causes = (
                "it is stopped, its Python is busy, or its host is not reached"
                if on_hosts
                else "it is stopped, or its Python is busy"
            )
            reason = f"process {each.process} ({where}) does not answer: {causes}"
            yield JobEvent(each.answered_s, reason, True)


def _event(event: JobEvent) -> Any:
    text = _text(f"{_clock(event.ago_s)} ago: {event.text}", "red" if event.is_error else "")
    text.no_wrap, text.overflow = False, "fold"
    return text


def _table(*columns: tuple[str, str]) -> Any:
    made = load_extra("rich.table", "jaxcomm top").Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, side in columns:
        made.add_column(name, justify=side, no_wrap=True, overflow="ellipsis")
    return made


def _text(words: str, style: str = "") -> Any:
    return load_extra("rich.text", "jaxcomm top").Text(printable(words), style, no_wrap=True, overflow="ellipsis")


def _clock(seconds: float) -> str:
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"
