"""Figures of claims in words, for tables and sentences.

In a template `{ID.field}` is a claim's figure, and `{A,B-*.field}` the range of several claims'; `*` is any text.

    ours, peer   the medians, as "12.5 ms"
    ratio        ours / peer, as "0.23"
    times        peer / ours, as "4.3"
    less         the share of the peer's time that ours saves, as "23 %"
    share        peer / ours in percent, as "97 %"
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping

from benchmarks.claims.model import Claim, ClaimError, Last
from jaxcomm.report.tables import seconds_text

PLACEHOLDER = re.compile(r"\{([a-z0-9*,-]+)\.([a-z]+)\}")


def fields() -> dict[str, Callable[[Last], str]]:
    """The function that formats each field, by the field's name."""
    return {
        "ours": lambda last: seconds_text(_known(last.ours)),
        "peer": lambda last: seconds_text(_known(last.peer)),
        "ratio": lambda last: ratio(_known(last.ratio)),
        "times": lambda last: two_figures(1 / _known(last.ratio)),
        "less": lambda last: f"{100 * (1 - _known(last.ratio)):.0f} %",
        "share": lambda last: f"{100 / _known(last.ratio):.0f} %",
    }


def filled(template: str, claims: Mapping[str, Claim]) -> str:
    """The template with the claims' last figures.

    Raises:
      ClaimError: no such claim or field, or a claim without figures.
    """
    return PLACEHOLDER.sub(lambda found: figure(found[1], found[2], claims), template)


def figure(names: str, field: str, claims: Mapping[str, Claim]) -> str:
    """The figure of one claim, or the least and the largest of several: "1.4 to 16", "12 ms to 1.2 s"."""
    chosen = [id for name in names.split(",") for id in claims if fnmatch.fnmatch(id, name)]
    word = fields().get(field)
    if not chosen or word is None:
        raise ClaimError(
            f"{{{names}.{field}}} names no claim or no figure.\n"
            f"  Cure: the figures are {', '.join(fields())}; `make claims ARGS=--list` shows the claims."
        )
    known = {}
    for id in chosen:
        last = claims[id].last
        try:
            known[_order(last, field)] = word(last) if last else ""
        except ValueError:
            raise ClaimError(f"{{{names}.{field}}}: the claim {id} has no figures.\n  Cure: rerun it.") from None
    low, high = known[min(known)], known[max(known)]
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    return f"{number} to {high}" if unit and unit == high.partition(" ")[2] else f"{low} to {high}"


def ratio(value: float) -> str:
    """Two digits after the point, or two significant ones: 1.07, 0.83, 0.065."""
    return f"{value:.2f}" if value >= 0.0995 else f"{value:.2g}"


def two_figures(value: float) -> str:
    """Two significant figures, and no exponent: 1.4, 16, 140."""
    return f"{value:.0f}" if value >= 9.95 else f"{value:.2g}" if value < 0.995 else f"{value:.1f}"


def _order(last: Last | None, field: str) -> float:
    """The sort key for figures of this field."""
    if last is None:
        raise ValueError
    if field in ("ours", "peer"):
        return _known(last.ours if field == "ours" else last.peer)
    return _known(last.ratio) * (1 if field == "ratio" else -1)


def _known(value: float | None) -> float:
    if value is None:
        raise ValueError
    return value
