"""The dumps of a job's processes in words and tables."""

from __future__ import annotations

from collections.abc import Sequence

from jaxcomm.log import printable
from jaxcomm.profile.dump_file import Dump
from jaxcomm.report.dumps.incident import Culprit, Incident, call_text
from jaxcomm.report.run.sites import generation_lines, gone_lines, rail_state
from jaxcomm.report.tables import seconds_text, table

_CALLS = 5  # number of latest calls that are shown for each process


def summary(found: Incident) -> str:
    """The first failure, the likely culprit, the place of each rank, and the latest calls, rails and members."""
    first = found.first
    parts = [
        f"{len(found.dumps)} {'dump' if len(found.dumps) == 1 else 'dumps'} of a job of {first.processes} "
        f"{'process' if first.processes == 1 else 'processes'}. The first failure was at "
        f"{first.written:%Y-%m-%d %H:%M:%S} UTC in process {first.process} on {printable(first.host)}:",
        _indented(first.error.text),
        f"Likely culprit: {culprit_text(found.culprit)}",
    ]
    if found.places:
        parts.append(_places(found))
    for dump in found.dumps:
        parts.append(_dump(dump))
    return "\n\n".join(parts)


def culprit_text(culprit: Culprit | None) -> str:
    """The culprit in a sentence."""
    if culprit is None:
        return "the dumps name no culprit; read the error."
    ranks = _named("rank", culprit.ranks) if culprit.ranks else ""
    processes = _named("process", culprit.processes) if culprit.processes else ""
    who = f"{ranks} ({processes})" if ranks and processes else ranks or processes
    return f"{who}: {printable(culprit.why)}."


def _places(found: Incident) -> str:
    head = ["rank", "process", "host", "arrived", "was in"]
    rows = [
        [
            place.rank,
            place.process,
            place.host,
            _arrived(place.arrived_s, place.is_missing),
            place.place,
        ]
        for place in found.places
    ]
    return table(head, rows)


def _arrived(arrived_s: float | None, is_missing: bool) -> str:
    if arrived_s is None:
        return "no"
    return f"after {seconds_text(arrived_s)}" + ", too late" * is_missing


def _dump(dump: Dump) -> str:
    """One dump: the latest calls, the rails out of service, the changes of members, and the processes that are gone."""
    lines = [f"Process {dump.process} on {printable(dump.host)}, pid {dump.pid}, {dump.at_s:.1f} s after it began:"]
    if dump.calls:
        rows = [
            [
                f"{call.at_s:.3f} s",
                call_text(call),
                f"{sum(at is not None for at in call.arrivals)} of {len(call.arrivals)}",
                seconds_text(call.took_s),
                "failed" if call.error else "ended",
            ]
            for call in dump.calls[-_CALLS:]
        ]
        lines.append(table(["began", "call", "arrived", "took", "state"], rows))
    lines += [
        f"rail {printable(rail.rail)} to process {rail.process} is {rail_state(rail.is_open, rail.has_left)}"
        for rail in dump.rails
        if not rail.is_open
    ]
    lines += generation_lines([each.model_dump() for each in dump.generations])
    lines += gone_lines([each.model_dump() for each in dump.gone])
    return "\n".join(lines)


def _named(word: str, numbers: Sequence[int]) -> str:
    plural = {"rank": "ranks", "process": "processes"}[word] if len(numbers) > 1 else word
    return f"{plural} {', '.join(map(str, numbers))}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in printable(text, keep="\n").splitlines())
