"""A run over time as an event file, from which TensorBoard plots scalars."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from jaxcomm.errors import load_extra
from jaxcomm.ffi.shares import UNITS
from jaxcomm.profile.run_file import SavedRun
from jaxcomm.report.run import series as run_series

_USE: Final = "jaxcomm report --tensorboard"
_VERSION: Final = "brain.Event:2"  # version of the format, which TensorBoard checks


class Scalar(NamedTuple):
    """A value of the series `name` at `at_s` seconds since the run began."""

    at_s: float
    name: str
    value: float


def scalars(run: SavedRun) -> list[Scalar]:
    """The values to plot, sorted by time: for rails, for late ranks and for times of calls."""
    found = [*_rails(run), *_late(run)]
    for key, steps in run_series.transfers(run, len(run.sites)).items():
        found += [
            Scalar(each.begin, f"{key.name}/{key.axes}/{key.bytes}/after_arrival_s", each.value) for each in steps
        ]
    return sorted(found)


def events(run: SavedRun, began: float) -> bytes:
    """The content of the event file. An event's step is its time in milliseconds since the run began.

    Args:
      run: the run to plot.
      began: start of the run, in seconds since 1970.

    Raises:
      JaxcommError: the package tensorboardX is not installed.
    """
    writer, messages = (load_extra(f"tensorboardX.{name}", _USE) for name in ("record_writer", "proto.event_pb2"))
    summary = load_extra("tensorboardX.summary", _USE)
    found = [messages.Event(wall_time=began, file_version=_VERSION)]
    found += [
        messages.Event(wall_time=began + at_s, step=round(1e3 * at_s), summary=summary.scalar(name, value))
        for at_s, name, value in scalars(run)
    ]
    with tempfile.TemporaryDirectory() as folder:  # tensorboardX writes to a path only
        path = Path(folder) / "events"
        records = writer.RecordWriter(str(path))
        for event in found:
            records.write(event.SerializeToString())
        records.close()
        return path.read_bytes()


def _rails(run: SavedRun) -> Iterator[Scalar]:
    for rail in run.rails:
        name = f"rails/{rail.process}/{rail.rail}"
        for span in rail.spans:
            yield Scalar(span.at_s, f"{name}/carried_bytes_per_s", span.bytes / span.length_s)
            if span.bytes_per_s is not None:
                yield Scalar(span.at_s, f"{name}/rate_bytes_per_s", span.bytes_per_s)
            if span.share is not None:
                yield Scalar(span.at_s, f"{name}/share", span.share / UNITS)
        for change in rail.changes:
            yield Scalar(change.at_s, f"{name}/is_open", change.is_open)


def _late(run: SavedRun) -> Iterator[Scalar]:
    for site in run_series.watched(run):
        for span in site.spans:
            for rank, at in enumerate(span.arrivals):
                if at is not None:
                    yield Scalar(span.at_s, f"{site.name}/{site.axes}/{site.bytes}/late_s/rank {rank}", at)
