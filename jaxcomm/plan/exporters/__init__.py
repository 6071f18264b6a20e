"""Writes plans as files for other executors, one file per byte range: MSCCL++ (JSON) and MSCCL (XML).

An export holds the messages of a schedule and of its precondition, as operations of thread blocks, with roles bound to
ranks. It omits everything for which the formats have no place: the plan's element types, predictions and provenance,
and decisions other than schedules. The tests execute exported files with readers of their own. The executors of MSCCL++
and MSCCL have not run exported files yet.

This package imports plan and schedules; any package may import it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from jaxcomm.errors import PlanError
from jaxcomm.plan.exporters.chunk_rounds import Exported
from jaxcomm.plan.exporters.msccl_xml import msccl_xml
from jaxcomm.plan.exporters.mscclpp import mscclpp
from jaxcomm.plan.schema import Plan
from jaxcomm.schedules import Schedule

__all__ = ["FORMATS", "Exported", "Format", "export", "range_name"]


class Format(NamedTuple):
    """A foreign format: its file suffix, and its writer, called with (schedule, name, min_bytes, max_bytes)."""

    suffix: str
    write: Callable[[Schedule, str, int, int | None], Exported]


FORMATS: Final = {"mscclpp": Format(".json", mscclpp), "msccl-xml": Format(".xml", msccl_xml)}


def export(plan: Plan, index: int, form: Format) -> Exported:
    """One byte range of a plan in another format. Equal plans give equal bytes.

    Args:
      plan: a plan from `jaxcomm.plan.load`, which proves plans.
      index: index of the entry in `plan.collectives`.
      form: one of `FORMATS`.

    Raises:
      PlanError: the format cannot hold the schedule; the error text names the entry, the limit and the value.
    """
    entry, schedule = plan.collectives[index], plan.schedules[index]
    name = f"jaxcomm-{plan.hash[:12]}-{schedule.kind}-{range_name(plan, index)}"
    try:
        return form.write(schedule, name, entry.min_bytes, entry.max_bytes)
    except PlanError as error:
        raise PlanError(
            f"collectives[{index}].schedule ({schedule.kind}, {schedule.num_chunks} chunks): {error}"
        ) from None


def range_name(plan: Plan, index: int) -> str:
    """The byte range of an entry as it appears in file names: `1024-65535`, or `65536-max`."""
    entry = plan.collectives[index]
    return f"{entry.min_bytes}-{'max' if entry.max_bytes is None else entry.max_bytes}"
