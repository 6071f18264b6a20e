"""Sentences on timed schedules: results of `jaxcomm plan --try`, sizes without a gain, and sizes not timed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from jaxcomm.plan.schema import Plan
from jaxcomm.plan.values import Entry
from jaxcomm.profile import Profile
from jaxcomm.report.tables import bytes_text, seconds_text
from jaxcomm.report.words import saved_text

_LARGE: Final = 16 << 20  # bytes; above this size the time of a call should be proportional to its bytes


def measured_cells(entry: Entry) -> list[str | None]:
    """The measured time, the default schedule's time, and the saving."""
    if not (found := entry.measured):
        return [None, None, None]
    saved = 1 - found.seconds / found.default if found.default else 0.0
    size = f" at {bytes_text(found.bytes)}" if found.bytes != entry.predicted.reference_bytes else ""
    return [seconds_text(found.seconds) + size, seconds_text(found.default), saved_text(saved)]


def measured_lines(entry: Entry) -> Iterator[str]:
    """Yields a sentence with the measured times and the predicted time. Yields nothing if no time was measured."""
    if found := entry.measured:
        saved = 1 - found.seconds / found.default if found.default else 0.0
        gain = f"{saved:z.0%} less" if saved >= 0 else "nothing is saved"
        yield (
            f"Measured by --try for {bytes_text(found.bytes)}: {seconds_text(found.seconds)}, the default schedule "
            f"{seconds_text(found.default)}: {gain} (predicted {seconds_text(entry.predicted.seconds)})."
        )


def nothing_to_plan_lines(plan: Plan) -> Iterator[str]:
    """Yields a sentence on the sizes at which no schedule gains from the late rank's delay, if there are such sizes."""
    timed, delay = plan.assumptions.timed, plan.assumptions.delay
    late = plan.roles.get("straggler")
    if timed and timed.same_bytes and timed.same_s is not None and delay and late is not None:
        same = bytes_text(timed.same_bytes)
        yield textwrap.fill(
            f"rank {late} is late by {seconds_text(delay.median_s)}; after it comes a sum of {same} takes "
            f"{seconds_text(timed.same_s)} whatever the schedule: nothing to plan for up to {same}.",
            110,
        )


def extrapolated_lines(plan: Plan) -> Iterator[str]:
    """Yields a sentence with the largest size at which schedules were timed, if this size is below `_LARGE`."""
    if timed := plan.assumptions.timed:
        proportion = "; if the timed ones do not, larger calls run the default schedule"
        more = "; `jaxcomm plan --try` times the plan's schedules"
        yield from _extrapolated("Schedules", timed.largest, proportion, more)


def extrapolated_links(profile: Profile) -> Iterator[str]:
    """Yields a sentence with the largest size at which links were timed, if it is below `_LARGE`.

    Yields nothing if whole schedules were timed.
    """
    if profile.link.samples and not profile.timed_schedules:
        yield from _extrapolated("Links", max(sample.bytes for sample in profile.link.samples))


def _extrapolated(timed: str, largest: int, but: str = "", more: str = "") -> Iterator[str]:
    if largest < _LARGE:
        yield textwrap.fill(
            f"{timed} were timed with up to {bytes_text(largest)}. Times of larger calls are assumed to grow with "
            f"their bytes{but}. `jaxcomm profile` with larger `--sizes` and more `--seconds` times them{more}.",
            110,
        )
