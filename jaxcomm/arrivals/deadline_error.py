"""The text and the record of a DeadlineError for a call that XLA runs, made from the rows that processes publish."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from jaxcomm.arrivals.records import Rank, WatchedSite
from jaxcomm.arrivals.rows import ArrivalsRow
from jaxcomm.report.tables import bytes_text


class OpenCall(NamedTuple):
    """A call in which a rank of this process waits: its site, its number, and the seconds since the rank's arrival."""

    key: str
    site: WatchedSite
    rank: Rank
    number: int
    waited_s: float


class Finding(NamedTuple):
    """A DeadlineError's text and record, and each rank's seconds since its arrival (None if it has not arrived)."""

    text: str
    record: dict[str, Any]
    since_s: list[float | None]


def find(call: OpenCall, rows: Mapping[int, ArrivalsRow], silent: Collection[int]) -> Finding:
    """Returns the error that names the ranks for which a call waits.

    Args:
      call: the open call.
      rows: the latest row of each process, by process. A process may have no row.
      silent: processes that have published no row for some seconds.
    """
    group = call.site.group_of(call.rank)
    since_s = [_since_s(call, rank, rows) for rank in group]
    missing = [rank for rank, seconds in enumerate(since_s) if seconds is None]
    arrived = [rank for rank, seconds in enumerate(since_s) if seconds is not None]
    waiting = [rank for rank in arrived if not _ended(call, group[rank], rows)]
    waited_s = max(call.waited_s, *(since_s[rank] or 0.0 for rank in waiting), 0.0)
    head = _head(call)
    if missing:
        have = "ranks {} of {} have" if len(missing) > 1 else "rank {} of {} has"
        head += f"{have.format(_ranks_text(missing), len(group))} not arrived after {waited_s:.1f} s; "
        head += f"{_ranks_text(waiting)} wait{'s' * (len(waiting) == 1)}."
    else:
        head += (
            f"all {len(group)} ranks have arrived, but the collective has not ended on "
            f"rank{'s' * (len(waiting) > 1)} {_ranks_text(waiting)} after {waited_s:.1f} s."
        )
    places = [f"\n  Rank {rank} is {_place(group[rank], rows, silent)}." for rank in missing]
    return Finding(head + "".join(places) + _where(call), _record(call, missing, waiting, waited_s), since_s)


def without_rows(call: OpenCall) -> Finding:
    """The finding for a job whose key-value store does not answer: the other ranks' places are unknown."""
    group = call.site.group_of(call.rank)
    own = group.index(call.rank)
    text = (
        f"{_head(call)}rank {own} of {len(group)} has waited for {call.waited_s:.1f} s, and the job's key-value store "
        "does not answer: the process that serves the store, usually process 0, is stopped, killed or unreachable."
    )
    since_s = [call.waited_s if rank == own else None for rank in range(len(group))]
    return Finding(text + _where(call), _record(call, [], [own], call.waited_s), since_s)


def _head(call: OpenCall) -> str:
    site = call.site
    size = f"{bytes_text(site.bytes)}, plan {site.plan}"
    return f"DeadlineError: {site.name} #{call.number} over '{site.axes}' ({size}): "


def _where(call: OpenCall) -> str:
    return f"\n  This call is at {call.site.line}." if call.site.line else ""


def _record(call: OpenCall, missing: list[int], waiting: list[int], waited_s: float) -> dict[str, Any]:
    return {
        "error": "DeadlineError",
        "name": call.site.name,
        "axes": call.site.axes,
        "plan": call.site.plan,
        "number": call.number,
        "missing": missing,
        "waiting": waiting,
        "seconds": waited_s,
    }


def _since_s(call: OpenCall, rank: Rank, rows: Mapping[int, ArrivalsRow]) -> float | None:
    """Seconds since a rank's arrival at the call; None if the rank has not arrived."""
    if rank == call.rank:
        return call.waited_s
    calls = rows[rank.process].sites.get(call.key, {}).get(rank.device) if rank.process in rows else None
    if calls is None or calls.arrived < call.number:
        return None
    return calls.for_s if calls.arrived == call.number else 0.0


def _ended(call: OpenCall, rank: Rank, rows: Mapping[int, ArrivalsRow]) -> bool:
    """Whether the call has ended on a rank that has arrived."""
    if rank == call.rank:
        return False
    calls = rows[rank.process].sites[call.key][rank.device]
    return calls.arrived > call.number or not calls.is_open


def _place(rank: Rank, rows: Mapping[int, ArrivalsRow], silent: Collection[int]) -> str:
    """Where a missing rank is, in words."""
    row = rows.get(rank.process)
    if row is None:
        return f"process {rank.process}, which has recorded no call yet"
    place = f"process {rank.process} on {row.host}"
    if row.has_ended:
        return f"{place}, which has ended"
    latest, is_silent = row.latest.get(rank.device), rank.process in silent
    if latest is None:
        place += ", and has been in no call"
    elif latest.is_open:
        place += f", and is in {latest.text}" + f", for {latest.for_s:.1f} s" * (not is_silent)
    else:
        place += f", and was last in {latest.text}" + f", {latest.for_s:.1f} s ago" * (not is_silent)
    return place + "; the process reports nothing any more: it is stopped, killed or unreachable" * is_silent


def _ranks_text(ranks: Sequence[int]) -> str:
    """Ranks, separated by commas. If there are more than eight, consecutive ranks become a range: "0-2,4-127"."""
    ranges: list[list[int]] = []
    for rank in ranks:
        if len(ranks) > 8 and ranges and rank == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], rank]
        else:
            ranges.append([rank])
    return ",".join("-".join(map(str, each)) for each in ranges)
