"""A plan's reduce-scatters and all-gathers, in words and a table."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from jaxcomm.plan.halves import HalfEntry
from jaxcomm.report.tables import bytes_text, seconds_text, table
from jaxcomm.report.words import range_text, saved_text, spec_text


def halves_section(entries: Sequence[HalfEntry]) -> str:
    """The section of `jaxcomm explain` on reduce-scatters and all-gathers: one row per byte range, then notes."""
    lines = [
        "A late rank gains nothing here: after its arrival it must still send its part of every other rank's chunk, or "
        "receive these chunks, through the port that bounds the call if all ranks arrive together. In an all_gather "
        "the other ranks' chunks reach its host before it arrives, by any schedule.",
        "Within a process every byte is read and stored once, whatever the plan.",
    ]
    return "\n".join(
        [
            "Schedules of psum_scatter and, backwards, all_gather between processes, by bytes of the whole buffer",
            textwrap.indent(halves_table(entries), "  "),
            "",
            *(textwrap.fill(line, 110, initial_indent="  - ", subsequent_indent="    ") for line in lines),
        ]
    )


def halves_table(entries: Sequence[HalfEntry]) -> str:
    """One row per byte range: its schedule, its predicted time, and the saving over the direct schedule.

    If a rank has too few ports for the direct schedule, the saving is over a ring.
    """
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
