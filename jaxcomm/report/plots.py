"""Line plots as PNG, drawn without a display."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxcomm.errors import load_extra
from jaxcomm.report import palette
from jaxcomm.report.tables import bytes_text


class Panel(NamedTuple):
    """One pair of axes, with a title and lines. The legend names each line by its key in `lines`."""

    title: str
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]


def png(rows: Sequence[Sequence[Panel]], *, x: str, y: str, log: bool = False, log_y: bool = False) -> bytes:
    """Draws rows of panels that share their axes.

    Args:
      rows: panels, the same number in each row. Lines of one name look the same in all panels.
      x: name and unit of the horizontal axis.
      y: name and unit of the vertical axis.
      log: whether both axes are logarithmic; the horizontal axis then counts bytes.
      log_y: whether the vertical axis alone is logarithmic.

    Returns:
      The bytes of a PNG file.
    """
    backend, figures = (load_extra(f"matplotlib.{name}", "a plot") for name in ("backends.backend_agg", "figure"))
    figure = figures.Figure(figsize=(1.0 + 4.6 * len(rows[0]), 1.0 + 3.4 * len(rows)), layout="constrained")
    backend.FigureCanvasAgg(figure)
    grid = figure.subplots(len(rows), len(rows[0]), squeeze=False, sharex=True, sharey=True)
    panels = [panel for row in rows for panel in row]
    # Dashes keep lines distinguishable if they coincide or are printed in grey.
    dashes = ["-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1))]
    names = dict.fromkeys(name for panel in panels for name in panel.lines)
    colours = palette.of_names(names)
    styles = {
        name: {"label": name, "color": colours[name], "linestyle": dashes[number % len(dashes)]}
        for number, name in enumerate(names)
    }
    drawn = {}
    for axes, panel in zip(grid.flat, panels, strict=True):
        for name, (xs, ys) in panel.lines.items():
            [drawn[name]] = axes.plot(xs, ys, linewidth=1.8, **styles[name])
        axes.set_title(panel.title, fontsize=10)
        axes.grid(visible=True, alpha=0.3)
        if log:
            axes.set_xscale("log", base=4)
            axes.xaxis.set_major_formatter(lambda size, _: bytes_text(size))
        if log or log_y:
            axes.set_yscale("log")
    for axes in grid[-1]:
        axes.set_xlabel(x)
    for axes in grid[:, 0]:
        axes.set_ylabel(y)
    grid[0][0].legend(handles=[drawn[name] for name in names], fontsize=8)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=130, format="png")
    return picture.getvalue()
