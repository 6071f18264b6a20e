"""The statistics of a run as a table: a row per call site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from jaxcomm.ffi.shares import UNITS
from jaxcomm.log import printable
from jaxcomm.profile import lateness
from jaxcomm.report.tables import bytes_text, seconds_text, table

ERRORS = 2.0  # half-width of a gain's 95 % confidence interval, in standard errors
_HEADER = ("site", "axes", "plan", "ranks", "bytes", "calls", "failed", "wait", "transfer", "who is late")
_NOTE = (
    "wait: from the first rank's arrival to the last one's; transfer: from there to the end (medians of the last calls)"
)
_TRIAL_NOTE = (
    "trial: transfers by the plan's schedule and by the default one, by turns; the plan is kept where it gains"
)


@dataclass(frozen=True)
class LateRank:
    """A call site's late rank.

    It arrived last in `last` of `calls` calls, in the median `by_s` seconds after the next-slowest rank.
    """

    rank: int
    last: int
    calls: int
    by_s: float


class Timing(NamedTuple):
    """Medians of a site's last calls, and its late rank. `wait_s` and `transfer_s` are None if they are unknown."""

    wait_s: float | None
    transfer_s: float | None
    late: LateRank | None


def sites_table(sites: Sequence[Mapping[str, Any]]) -> str:
    """One row per call site that was called.

    Args:
      sites: the sites of `jaxcomm.stats()`.

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
    """A trial in a few words: "kept: 31 ms against 52 ms, 40% less (saves 38% to 43%)", with the 95 % interval.

    Args:
      trial: the trial in a record of `jaxcomm.stats()`, or None if the call site has no trial.
    """
    if not trial:
        return None
    default_s = trial["default_s"]
    gain = 1 - trial["plan_s"] / default_s if default_s else 0.0
    error = ERRORS * trial.get("error_s", 0.0) / default_s if default_s else 0.0
    less = f"{abs(gain):.0%} {'less' if gain >= 0 else 'more'}"
    less += f" (saves {gain - error:.0%} to {gain + error:.0%})" if error else ""
    times = f"{trial['outcome']}: {seconds_text(trial['plan_s'])} against {seconds_text(default_s)}, {less}"
    return times + _other_reason(trial, gain)


def _other_reason(trial: Mapping[str, Any], gain: float) -> str:
    """The reason for a trial's outcome, if the times of the transfers alone suggest the opposite outcome."""
    if trial["outcome"] == "open" or (gain > 0) == (trial["outcome"] == "kept"):
        return ""
    if trial.get("plan_cycle_s") and trial.get("default_cycle_s"):
        longer = trial["plan_cycle_s"] / trial["default_cycle_s"] - 1
        if longer and (longer < 0) == (trial["outcome"] == "kept"):
            return f", but from call to call {abs(longer):.1%} {'more' if longer > 0 else 'less'}"
    return ", which may be chance"


def rails_table(rails: Sequence[Mapping[str, Any]]) -> str:
    """One row per rail to another process. The share in the row is the rail's share of the largest calls.

    Args:
      rails: the records of `jaxcomm.stats().rails`.

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


def generation_lines(generations: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line for each change of the job's members.

    Args:
      generations: the records of `jaxcomm.stats().generations`.
    """
    return [f"after {each['at_s']:.1f} s: {generation_text(each)}" for each in generations]


def generation_text(record: Mapping[str, Any]) -> str:
    """A change of the job's members in words, such as "left 2; members 0, 1, 3 connected in 0.31 s"."""
    changes = [f"{verb} {', '.join(map(str, record[verb]))}" for verb in ("left", "joined") if record[verb]]
    members = f"members {', '.join(map(str, record['processes']))} connected in {record['took_s']:.2f} s"
    if record["error"]:
        members = f"not connected: {printable(record['error'].splitlines()[0])}"
    return "; ".join([*changes, members])


def gone_lines(gone: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per process that has left or failed.

    Args:
      gone: the records of `jaxcomm.stats().gone`.
    """
    return [f"after {each['at_s']:.1f} s: {printable((each['why'].splitlines() or [''])[0])}" for each in gone]


def rail_state(is_open: bool, has_left: bool) -> str:
    """The rail's state in a word. A rail is fenced if it is not open and its process has not left."""
    return "open" if is_open else "left" if has_left else "fenced"


def timing(site: Mapping[str, Any]) -> Timing:
    """The medians and the late rank of a call site, from its record in `jaxcomm.stats()`."""
    transfer = median(site["after_arrival_s"]) if site["arrivals"] else None
    if not knows_arrivals(site):
        return Timing(None, transfer, None)
    found = lateness.of_arrivals(np.array(site["arrivals"]))
    by_s = median(seconds for seconds in found.delays if seconds) if any(found.delays) else 0.0
    late = LateRank(found.rank, found.late_steps, found.steps, by_s) if found.is_late else None
    return Timing(median(map(max, site["arrivals"])), transfer, late)


def knows_arrivals(site: Mapping[str, Any]) -> bool:
    """Whether a site's record has the arrivals of all ranks. The records of changing groups lack some arrivals."""
    changes = site["work_s"] or any(at is None for call in site["arrivals"] for at in call)
    return bool(site["arrivals"]) and site["ranks"] > 1 and not changes


def late_text(late: LateRank) -> str:
    """A late rank in words: "rank 3: last in 12 of 16, by 20 ms"."""
    return f"rank {late.rank}: last in {late.last} of {late.calls}, by {seconds_text(late.by_s)}"


def _row(site: Mapping[str, Any]) -> list[object]:
    found = timing(site)
    times = [None if seconds is None else seconds_text(seconds) for seconds in (found.wait_s, found.transfer_s)]
    late = late_text(found.late) if found.late else None if found.wait_s is None else "nobody"
    row = [site["name"], site["axes"], site["plan"], site["ranks"], bytes_text(site["bytes"]), site["calls"]]
    return [*row, site["failed"], *times, late]
