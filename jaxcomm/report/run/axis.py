"""The time axis that the panels of a run's picture share, and a panel's title, legend and rows."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from jaxcomm.report import palette
from jaxcomm.report.drawing import box, line, text
from jaxcomm.report.plan.step import ticks
from jaxcomm.report.tables import seconds_text

WIDTH: Final = 1100.0
LEFT: Final = 130.0
_RIGHT: Final = 30.0
_GAP: Final = 14.0  # height between panels


class Axis(NamedTuple):
    """The horizontal axis: seconds of the run, from left to right."""

    begin: float
    end: float

    def x(self, seconds: float) -> float:
        """The horizontal position of a time, in pixels."""
        part = (seconds - self.begin) / (self.end - self.begin)
        return LEFT + (WIDTH - LEFT - _RIGHT) * min(max(part, 0.0), 1.0)

    def labels(self, y: float) -> Iterator[str]:
        """The shapes of the axis below all panels. Its numbers are seconds from the beginning of the run."""
        yield line("axis", (LEFT, y, WIDTH - _RIGHT, y), palette.GREY)
        for tick in ticks(self.end):
            if tick >= self.begin:
                yield line("tick", (self.x(tick), y, self.x(tick), y + 5), palette.GREY)
                yield text(self.x(tick), y + 18, seconds_text(tick) if tick else "0", 11, 'text-anchor="middle"')


class RunPanel:
    """A panel of a run's picture, drawn from the top down: a title, then rows.

    Attributes:
      parts: shapes of the picture.
      bottom: vertical position at which the next row begins.
    """

    def __init__(self, y: float, title: str, left_out: int = 0, of: str = "") -> None:
        """Starts a panel. `left_out` is how many items were omitted; `of` names them, such as "ranks"."""
        more = f" ({left_out} more {of} are left out)" if left_out > 0 else ""
        self.parts = [text(20, y + _GAP + 12, title + more, 13, 'font-weight="bold"')]
        self.bottom = y + _GAP + 30

    def keys(self, looks: Mapping[str, tuple[str, str]]) -> None:
        """Adds a legend row. `looks` has, for each name, the colour and further SVG attributes of a box."""
        x = LEFT
        for name, (colour, look) in looks.items():
            self.parts.append(box("key", x, self.bottom - 8, 12, 12, colour, look=look))
            self.parts.append(text(x + 17, self.bottom + 2, name or "the coordinator's interface", 11))
            x += 40 + 7 * len(name or "the coordinator's interface")
        self.bottom += 12

    def row(self, height: float, name: str = "") -> float:
        """Adds a row of this height below the other rows. Returns the vertical position of the row's top."""
        top = self.bottom
        if name:
            self.parts.append(text(LEFT - 8, top + height / 2 + 3, name, 11, 'text-anchor="end"'))
        self.bottom += height
        return top

    def say(self, words: str) -> None:
        """Adds one or more lines of text."""
        for part in textwrap.wrap(words, 150, subsequent_indent="     "):
            self.bottom += 15
            self.parts.append(text(20, self.bottom, part, 11, 'xml:space="preserve"'))
