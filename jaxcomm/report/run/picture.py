"""A run as a picture: panels over one axis of time, for rails, late ranks, times of calls, and plans."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from jaxcomm.profile.run_file import RunRail, SavedRun
from jaxcomm.report import palette
from jaxcomm.report.drawing import box, document, line, polyline, text
from jaxcomm.report.run import series as run_series
from jaxcomm.report.run.axis import LEFT, WIDTH, Axis, RunPanel
from jaxcomm.report.run.series import NO_PLAN, Interval, TimeGrid
from jaxcomm.report.tables import bytes_text, seconds_text

_COLUMNS: Final = 160  # number of columns into which panels divide the run's time
_PROCESSES, _RANKS, _SITES, _PLANS, _EVENTS = 8, 32, 4, 12, 20  # maximum numbers of drawn items
_PAUSE: Final = 0.1  # longest gap that a line bridges, as a share of the run
_CRISP: Final = 'shape-rendering="crispEdges"'
_STRIP, _ROW, _PLOT = 26.0, 14.0, 110.0  # heights in pixels


def svg(run: SavedRun) -> str:
    """Draws a run from its first record to the time at which its file was written.

    Returns:
      An SVG document with one `<g class="panel">` for each kind of record that the run has: the rails' shares, the
      rails' traffic, the rails' rates, late ranks, times from the last arrival to the end, and plans with the events of
      plan="auto".
    """
    axis = Axis(*run_series.extent(run))
    title = f"A run of {seconds_text(axis.end - axis.begin)}, as recorded by one of its processes"
    parts = [text(20, 28, title, 15, 'font-weight="bold"')]
    y = 44.0
    panels: list[Callable[[SavedRun, Axis, float], RunPanel | None]] = [
        _shares,
        _carried,
        _rates,
        _late,
        _transfers,
        _plans,
    ]
    for panel in panels:
        if drawn := panel(run, axis, y):
            parts += ['<g class="panel">', *drawn.parts, "</g>"]
            y = drawn.bottom
    if y == 44.0:
        parts.append(text(20, 64, "no call yet"))
        y = 74.0
    return document(WIDTH, y + 44, title, [*parts, *axis.labels(y + 10)])


def _shares(run: SavedRun, axis: Axis, y: float) -> RunPanel | None:
    """A panel with a strip for each other process. The shares of the rails to that process are stacked in the strip."""
    if not run.rails:
        return None
    colours = palette.of_names(dict.fromkeys(rail.rail for rail in run.rails))
    by_process: dict[int, list[RunRail]] = {}
    for rail in run.rails:
        by_process.setdefault(rail.process, []).append(rail)
    most = sorted(by_process, key=lambda process: -sum(rail.fences for rail in by_process[process]))[:_PROCESSES]
    head = "Shares of the rails in the largest calls, by the process that they lead to; ✕: a rail is fenced"
    panel = RunPanel(y, head, len(by_process) - len(most), "processes")
    panel.keys({name: (colour, "") for name, colour in colours.items()})
    for process in sorted(most):
        top = panel.row(_STRIP, f"process {process}")
        panel.parts += _strip(by_process[process], axis, top, colours)
    return panel


def _strip(rails: list[RunRail], axis: Axis, top: float, colours: dict[str, str]) -> Iterator[str]:
    height = _STRIP - 4
    steps = {rail.rail: run_series.shares(rail, axis.end) for rail in rails}
    times = sorted({each.begin for own in steps.values() for each in own} | {axis.end})
    for begin, end in itertools.pairwise(times):
        parts = {
            name: next((each.value for each in own if each.begin <= begin < each.end), 0.0)
            for name, own in steps.items()
        }
        # Rails record a change of shares at slightly different times. Between these times the total is not 1, so the
        # strip shows each share as a part of the total.
        total, above = sum(parts.values()), 0.0
        for name, part in parts.items():
            if part:
                title = f"{name} {part:.1%} from {begin:.2f} s"
                x, width, depth = axis.x(begin), axis.x(end) - axis.x(begin), part / total * height
                yield box("share", x, top + above, width, depth, colours[name], title, _CRISP)
                above += depth
    for rail in rails:
        for each in run_series.closed(rail, axis.begin, axis.end):
            title = f"{rail.rail} fenced at {each.begin:.3f} s, for {seconds_text(each.end - each.begin)}: {each.word}"
            ends = (axis.x(each.begin), top + height, axis.x(each.end), top + height)
            yield line("fenced", ends, palette.LATE, 3, title=title)
            yield text(axis.x(each.begin), top + height / 2 + 4, "✕", 11, 'text-anchor="middle"')


def _carried(run: SavedRun, axis: Axis, y: float) -> RunPanel | None:
    """A panel with a line for each rail: the bytes per second over this rail to all processes together."""
    head = "Bytes that this process sent over each rail, to all processes together"
    return _by_rail(run, axis, y, head, run_series.carried)


def _rates(run: SavedRun, axis: Axis, y: float) -> RunPanel | None:
    """A panel with a line for each rail: the rail's measured rate, from which the shares are computed."""
    head = "The rates by which shares are divided, as this process found them, in the mean of all processes"
    return _by_rail(run, axis, y, head, run_series.rates)


def _by_rail(
    run: SavedRun, axis: Axis, y: float, head: str, series: Callable[[list[RunRail], TimeGrid], list[Interval]]
) -> RunPanel | None:
    names = [*dict.fromkeys(rail.rail for rail in run.rails)]
    grid = TimeGrid(axis.begin, axis.end, _COLUMNS)
    lines = {name: series([rail for rail in run.rails if rail.rail == name], grid) for name in names}
    if not any(each.value for own in lines.values() for each in own):
        return None
    panel = RunPanel(y, head)
    panel.keys({name: (colour, "") for name, colour in palette.of_names(names).items()})
    _plot(panel, axis, lines, lambda value: f"{bytes_text(value)}/s")
    return panel


def _late(run: SavedRun, axis: Axis, y: float) -> RunPanel | None:
    """A panel with a row for each rank; darker means later."""
    spans = max((len(site.spans) for site in run_series.watched(run)), default=0)
    grid = TimeGrid(axis.begin, axis.end, min(max(spans // 2, 10), _COLUMNS))
    late = run_series.lateness(run, grid)
    if not len(late):
        return None
    latest = float(np.nanmax(late)) or 1e-9
    means = np.nan_to_num(np.nanmean(late, axis=1))
    drawn = sorted(np.argsort(-means, kind="stable")[:_RANKS].tolist())
    head = f"Late ranks: seconds after the first rank; darkest: {seconds_text(latest)}"
    panel = RunPanel(y, head, len(late) - len(drawn), "ranks")
    for rank in drawn:
        top = panel.row(_ROW, f"rank {rank}")
        for column, value in enumerate(late[rank]):
            if np.isnan(value):
                continue
            begin = axis.begin + column * grid.width
            x, width = axis.x(begin), axis.x(begin + grid.width) - axis.x(begin)
            title = f"rank {rank}, {begin:.2f} s: {seconds_text(float(value))} after the first"
            look = f'fill-opacity="{0.04 + 0.96 * value / latest:.3f}" {_CRISP}'
            panel.parts.append(box("late", x, top, width, _ROW - 1, palette.LATE, title, look))
    return panel


def _transfers(run: SavedRun, axis: Axis, y: float) -> RunPanel | None:
    """A panel with a line for each of the busiest sites."""
    lines = {str(key): own for key, own in run_series.transfers(run, _SITES).items()}
    if not any(lines.values()):
        return None
    panel = RunPanel(y, "From the last arrival to the end of a call, in the mean")
    panel.keys({name: (colour, "") for name, colour in palette.of_names(lines).items()})
    _plot(panel, axis, lines, seconds_text)
    return panel


def _plans(run: SavedRun, axis: Axis, y: float) -> RunPanel | None:
    """A panel with a row for each plan that calls followed. Below the rows are the events of plan="auto".

    A dashed line with the event's number marks each event's time on the rows.
    """
    intervals = run_series.plans(run)
    if not intervals:
        return None
    panel = RunPanel(y, "Plans that calls followed", len(intervals) - _PLANS, "plans")
    top = panel.bottom
    for plan, own in [*intervals.items()][:_PLANS]:
        at = panel.row(_ROW + 4, "no plan" if plan in NO_PLAN else plan)
        colour = palette.PLAIN if plan in NO_PLAN else palette.PLAN
        for each in own:
            end = min(each.end, axis.end)
            title = f"{plan}, {each.begin:.2f} s to {end:.2f} s"
            panel.parts.append(
                box("plan", axis.x(each.begin), at, axis.x(end) - axis.x(each.begin), _ROW, colour, title)
            )
    events = run.events[-_EVENTS:]
    for number, event in enumerate(events, 1):
        x = axis.x(event.at_s)
        panel.parts.append(
            line("event", (x, top - 4, x, panel.bottom), palette.INK, 1, 'stroke-dasharray="3 2"', event.text)
        )
        panel.parts.append(text(x + 2, top - 6, str(number), 10))
    for number, event in enumerate(events, 1):
        panel.say(f"{number}  {event.at_s:.1f} s  {event.text}")
    return panel


def _plot(panel: RunPanel, axis: Axis, lines: dict[str, list[Interval]], label: Callable[[float], str]) -> None:
    """Draws lines through the middles of intervals on a scale from 0. Long gaps break a line.

    If a few values are far above all others, they are drawn at the top of the scale.
    """
    values = [each.value for own in lines.values() for each in own]
    most = min(max(values), 1.5 * float(np.percentile(values, 98))) or max(values) or 1.0
    if max(values) > most:
        panel.parts.append(text(LEFT - 8, panel.bottom - 6, f"up to {label(max(values))}", 10, 'text-anchor="end"'))
    top = panel.row(_PLOT)
    bottom = top + _PLOT - 14
    for part in (0.0, 0.5, 1.0):
        at = bottom - part * (bottom - top)
        panel.parts.append(line("grid", (LEFT, at, WIDTH - 30, at), palette.PALE))
        panel.parts.append(text(LEFT - 8, at + 4, label(part * most) if part else "0", 11, 'text-anchor="end"'))
    colours = palette.of_names(lines)
    for name, own in lines.items():
        points: list[tuple[float, float]] = []
        for before, each in zip([None, *own], own, strict=False):
            if before and each.begin - before.end > _PAUSE * (axis.end - axis.begin):
                panel.parts.append(polyline("line", points, colours[name]))
                points = []
            middle = min((each.begin + each.end) / 2, axis.end)
            points.append((axis.x(middle), bottom - min(each.value / most, 1.0) * (bottom - top)))
        panel.parts.append(polyline("line", points, colours[name]))
