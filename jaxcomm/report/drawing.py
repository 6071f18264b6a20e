"""Draws the SVG shapes of pictures. The title of a shape appears when a reader points at the shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from jaxcomm.log import printable
from jaxcomm.report import palette

FONT = "DejaVu Sans, Helvetica, Arial, sans-serif"


def document(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """An SVG document on white; `title` is for screen readers."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="{FONT}" fill="{palette.INK}" role="img" '
        f'aria-label="{escaped(title)}">'
    )
    return "\n".join([head, f'<rect width="{width:g}" height="{height:g}" fill="white"/>', *parts, "</svg>\n"])


def text(x: float, y: float, words: str, size: float = 12, look: str = "") -> str:
    """A text whose baseline begins at (`x`, `y`). `look` has further SVG attributes."""
    return f'<text x="{x:.6g}" y="{y:.6g}" font-size="{size:g}" {look}>{escaped(words)}</text>'


def box(kind: str, x: float, y: float, width: float, height: float, fill: str, title: str = "", look: str = "") -> str:
    """A rectangle with the class `kind`."""
    shape = (
        f'<rect class="{kind}" x="{x:.6g}" y="{y:.6g}" width="{width:.6g}" height="{height:.6g}" fill="{fill}" {look}'
    )
    return f"{shape}><title>{escaped(title)}</title></rect>" if title else f"{shape}/>"


def line(kind: str, ends: Sequence[float], stroke: str, width: float = 1, look: str = "", title: str = "") -> str:
    """A straight line with the class `kind` between two points; `ends` is x1, y1, x2, y2."""
    x1, y1, x2, y2 = ends
    shape = (
        f'<line class="{kind}" x1="{x1:.6g}" y1="{y1:.6g}" x2="{x2:.6g}" y2="{y2:.6g}" stroke="{stroke}" '
        f'stroke-width="{width:g}" {look}'
    )
    return f"{shape}><title>{escaped(title)}</title></line>" if title else f"{shape}/>"


def polyline(kind: str, points: Sequence[tuple[float, float]], stroke: str) -> str:
    """A line with the class `kind` through points. Returns "" for fewer than two points."""
    if len(points) < 2:
        return ""
    where = " ".join(f"{x:.6g},{y:.6g}" for x, y in points)
    return f'<polyline class="{kind}" points="{where}" fill="none" stroke="{stroke}" stroke-width="1.8"/>'


def escaped(words: str, keep: str = "") -> str:
    """Escapes words for XML and HTML, between tags or in quotes. `keep` is passed to `printable`."""
    return escape(printable(words, keep))
