"""A plan's reduce-scatters and all-gathers, in words and a table."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from jaxcomm.plan.halves import HalfEntry
from jaxcomm.report.tables import bytes_text, seconds_text, table
from jaxcomm.report.words import range_text, saved_text, spec_text


def halves_section(entries: Sequence[HalfEntry]) -> str:
    """The section of an explanation: one row per byte range, and what that does not help."""
    lines = [
        "A late rank gains nothing here: once it is there it must still send its part of every other's chunk, or "
        "receive these, through the port that bounds the call when all come together. Of an all_gather the others' "
        "chunks reach its host before it comes, whatever runs.",
        "Within a process every byte is read and stored once, whatever the plan.",
    ]
    return "\n".join(
        [
            "What psum_scatter runs between processes, and backwards all_gather, by bytes of the whole buffer",
            textwrap.indent(halves_table(entries), "  "),
            "",
            *(textwrap.fill(line, 110, initial_indent="  - ", subsequent_indent="    ") for line in lines),
        ]
    )


def halves_table(entries: Sequence[HalfEntry]) -> str:
    """One row per byte range: its schedule, its predicted time, and the saving on direct (too few ports: on a ring)."""
    rows = []
    for entry in entries:
        times = {offer.schedule.kind: offer.seconds for offer in entry.alternatives}
        direct = times.get("direct", times.get("ring", entry.seconds))
        rows.append(
            [
                range_text(entry),
                spec_text(entry.schedule),
                bytes_text(entry.reference_bytes),
                *(seconds_text(seconds) for seconds in (entry.seconds, entry.lower_bound)),
                *(seconds_text(times[kind]) if kind in times else None for kind in ("direct", "ring")),
                saved_text(1 - entry.seconds / max(direct, 1e-12)),
            ]
        )
    return table(["bytes", "runs", "times for", "time", "bound", "direct", "ring", "saves"], rows)
