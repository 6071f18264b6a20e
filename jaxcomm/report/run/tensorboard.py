"""A run over time as an event file, from which TensorBoard plots scalars.

The format is TensorFlow's. A record is a length, its checksum, data, and their checksum (masked CRC-32C). The data is a
protobuf message `Event` (tensorflow/core/util/event.proto). A scalar's message has the fields 1 (time), 2 (step) and
5 (summary).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from jaxcomm.ffi.shares import UNITS
from jaxcomm.profile.run_file import SavedRun
from jaxcomm.report.run import series as run_series

_POLYNOMIAL: Final = 0x82F63B78  # polynomial of CRC-32C, reflected
_MASK: Final = 0xA282EAD8
_VERSION: Final = b"brain.Event:2"


class Scalar(NamedTuple):
    """A value at a time of the run, in seconds."""

    at_s: float
    name: str
    value: float


def scalars(run: SavedRun) -> list[Scalar]:
    """The series to plot, by time: rails, late ranks and times of calls."""
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
    """
    records = [_record(_double(1, began) + _bytes(3, _VERSION))]
    for at_s, name, value in scalars(run):
        summary = _bytes(1, _bytes(1, name.encode()) + _float(2, value))
        records.append(_record(_double(1, began + at_s) + _varint(2, round(1e3 * at_s)) + _bytes(5, summary)))
    return b"".join(records)


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


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    value ^= 0xFFFFFFFF
    return struct.pack("<I", (((value >> 15) | (value << 17)) + _MASK) & 0xFFFFFFFF)


def _table() -> Iterator[int]:
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        yield value


_TABLE: Final = tuple(_table())


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    return bytes([field << 3 | 5]) + struct.pack("<f", value)


def _varint(field: int, value: int) -> bytes:
    return bytes([field << 3]) + _number(value)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _number(len(value)) + value


def _number(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
