"""Plain-text tables, and numbers with units."""

from __future__ import annotations

from collections.abc import Sequence

from jaxcomm.log import printable

_BYTES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lays out rows under a header; numbers are aligned right, words left.

    Args:
      header: one name per column.
      rows: cells. The text of a cell is `printable(str(cell))`, or `-` for None.

    Returns:
      Lines without a trailing newline.
    """
    cells = [["-" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    right = [all(_numeric(row[i]) for row in cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, cells)])


def bytes_text(count: float) -> str:
    """A byte count in the largest binary unit that fits, such as `16 MiB`."""
    for scale, unit in _BYTES:
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count:.4g} B"


def seconds_text(seconds: float) -> str:
    """A duration with three figures in a fitting unit, such as `1.25 ms`."""
    for scale, unit in _SECONDS:
        if abs(seconds) >= 0.9995 * scale:
            value = seconds / scale
            return f"{value:.3g} {unit}" if abs(value) < 999.5 else f"{value:.0f} {unit}"
    return f"{seconds:.3g} s"


def _numeric(cell: str) -> bool:
    return cell == "-" or cell[:1].isdigit() or (cell[:1] in "+-≥" and cell[1:2].isdigit())
