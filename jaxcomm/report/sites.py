"""The statistics of a run as a table: a row per call site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from jaxcomm.ffi.shares import UNITS
from jaxcomm.log import printable
from jaxcomm.profile import straggler
from jaxcomm.report.tables import bytes_text, seconds_text, table

_HEADER = ("site", "axes", "plan", "ranks", "bytes", "calls", "failed", "wait", "transfer", "who is late")
_NOTE = (
    "wait: from the first rank's arrival to the last one's; transfer: from there to the end (medians of the last calls)"
)
_TRIAL_NOTE = (
    "trial: transfers by the plan's schedule and by the default one, by turns; the plan is kept where it gains"
)


def sites_table(sites: Sequence[Mapping[str, Any]]) -> str:
    """One row per call site that was called.

    Args:
      sites: as in `jaxcomm.stats()`.

    Returns:
      Lines without a trailing newline.
    """
    called = [site for site in sites if site["calls"] or site["failed"]]
    if not called:
        return "no call yet"
    if not any(site.get("trial") for site in called):
        return f"{table(_HEADER, [*map(_row, called)])}\n{_NOTE}"
    rows = [[*_row(site), trial_text(site.get("trial"))] for site in called]
    return f"{table((*_HEADER, 'trial'), rows)}\n{_NOTE}\n{_TRIAL_NOTE}"


def trial_text(trial: Mapping[str, Any] | None) -> str | None:
    """A trial in a few words: "kept: 31 ms against 52 ms, 40% less".

    Args:
      trial: as in a record of `jaxcomm.stats()`; None: the call site has none.
    """
    if not trial:
        return None
    gain = 1 - trial["plan_s"] / trial["default_s"] if trial["default_s"] else 0.0
    less = f"{abs(gain):.0%} {'less' if gain >= 0 else 'more'}"
    return f"{trial['outcome']}: {seconds_text(trial['plan_s'])} against {seconds_text(trial['default_s'])}, {less}"


def rails_table(rails: Sequence[Mapping[str, Any]]) -> str:
    """One row per rail to another process; its share is that of the largest calls.

    Args:
      rails: as in `jaxcomm.stats().rails`.

    Returns:
      Lines without a trailing newline.
    """
    rows = [
        [
            rail["process"],
            rail["rail"],
            rail_state(rail["is_open"], rail["has_left"]),
            rail["fences"],
            f"{rail['shares'][-1][1] / UNITS:.1%}",
            bytes_text(rail["bytes"]),
        ]
        for rail in rails
    ]
    return table(("process", "rail", "state", "fences", "share", "sent"), rows)


def gone_lines(gone: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per process that is gone.

    Args:
      gone: as in `jaxcomm.stats().gone`.
    """
    return [f"after {each['at_s']:.1f} s: {printable((each['why'].splitlines() or [''])[0])}" for each in gone]


def rail_state(is_open: bool, has_left: bool) -> str:
    """In a word: a rail that is neither has been fenced."""
    return "open" if is_open else "left" if has_left else "fenced"


def _row(site: Mapping[str, Any]) -> list[object]:
    row = [site["name"], site["axes"], site["plan"], site["ranks"], bytes_text(site["bytes"]), site["calls"]]
    transfer = seconds_text(median(site["after_arrival_s"])) if site["arrivals"] else None
    return [*row, site["failed"], *_waits(site, transfer)]


def _waits(site: Mapping[str, Any], transfer: str | None) -> tuple[str | None, str | None, str | None]:
    """The wait, the transfer and who is late."""
    if not site["arrivals"] or site["ranks"] < 2 or site["work_s"]:  # groups that change: nobody waits for all ranks
        return None, transfer, None
    wait = seconds_text(median(map(max, site["arrivals"])))
    late = straggler.of_arrivals(np.array(site["arrivals"]))
    if not late.is_late:
        return wait, transfer, "nobody"
    lead = seconds_text(median(seconds for seconds in late.delays if seconds) if any(late.delays) else 0.0)
    return wait, transfer, f"rank {late.rank}: last in {late.late_steps} of {late.steps}, by {lead}"
