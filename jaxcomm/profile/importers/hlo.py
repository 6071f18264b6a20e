"""The sizes of the allreduces in a trace's programs, and the groups of jaxcomm's own allreduces.

A trace holds each compiled program as a serialised HloProto, which ProfileData does not expose. This module reads the
few needed fields from the protobuf wire format, without a protobuf package. The field numbers come from xplane.proto,
hlo.proto and xla_data.proto of OpenXLA.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from jaxcomm.ffi.site_record import devices_of

_TARGET = "jaxcomm_collective"
_SITE = re.compile(r'\bsite = "((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(rb"\\([0-9A-F]{2}|.)")
# Patterns for the attributes of jaxcomm's custom calls on GPUs.
_KIND = re.compile(r'kind = "all_reduce"')
_GROUPS = re.compile(r"\bgroups = (?:array<i32: |dense<\[)([\d, ]+)")
_SIZES = re.compile(r"\bsizes = (?:array<i32: |dense<\[?)([\d, ]+)")
_TUPLE = 13
_ELEMENT_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4, 12: 8, 15: 8, 16: 2, 18: 16}


class HloAllReduce(NamedTuple):
    """One allreduce instruction: bytes per rank, and groups of device ids (empty if the trace's events name ids)."""

    bytes: int
    groups: tuple[tuple[int, ...], ...]


def allreduces(xspace: bytes) -> dict[tuple[str, str], HloAllReduce]:
    """The allreduces in a serialised XSpace. Keys are the names of program and instruction: "jit_step(8)", "psum.7".

    Raises:
      ValueError: the bytes are not a protobuf.
    """
    found = {}
    for name, program in _programs(xspace):
        for module in _all(program, 1):  # HloProto.hlo_module
            for computation in _all(module, 3):
                for instruction in _all(computation, 2):
                    if (groups := _groups(instruction)) is not None:
                        size = sum(_shape_bytes(shape) for shape in _all(instruction, 3))
                        found[name, _text(instruction, 1)] = HloAllReduce(size, groups)
    return found


def _programs(xspace: bytes) -> Iterator[tuple[str, bytes]]:
    for plane in _all(xspace, 1):
        if _text(plane, 2) == "/host:metadata":
            for entry in _all(plane, 4):  # XPlane.event_metadata, a map
                for metadata in _all(entry, 2):
                    for stat in _all(metadata, 5):
                        for program in _all(stat, 6):  # XStat.bytes_value
                            yield _text(metadata, 2), program


def _groups(instruction: bytes) -> tuple[tuple[int, ...], ...] | None:
    """The groups of an allreduce; None for any other instruction.

    HLO keeps a custom call's attributes as MLIR text in the backend config.
    """
    if _text(instruction, 2) in ("all-reduce", "all-reduce-start"):
        return ()
    if _text(instruction, 2) != "custom-call" or _text(instruction, 28) != _TARGET:
        return None
    attributes = _text(instruction, 43)
    if site := _SITE.search(attributes):
        kind, groups = devices_of(_ESCAPED.sub(_unescaped, site[1].encode()))
        return groups if kind == "all_reduce" else None
    if not _KIND.search(attributes):
        return None
    found = _GROUPS.search(attributes), _SIZES.search(attributes)
    if not (found[0] and found[1]):
        return ()
    ids, sizes = ([int(number) for number in each[1].split(",")] for each in found if each)
    ends = list(itertools.accumulate(sizes))
    return tuple(tuple(ids[end - size : end]) for size, end in zip(sizes, ends, strict=True))


def _unescaped(escaped: re.Match[bytes]) -> bytes:
    return bytes.fromhex(escaped[1].decode()) if len(escaped[1]) == 2 else escaped[1]


def _shape_bytes(shape: bytes) -> int:
    element = next((value for number, value in _fields(shape) if number == 2 and isinstance(value, int)), 0)
    if element == _TUPLE:
        return sum(_shape_bytes(part) for part in _all(shape, 4))
    count = 1
    for packed in _all(shape, 3):  # ShapeProto.dimensions
        position = 0
        while position < len(packed):
            size, position = _varint(packed, position)
            count *= size
    return count * _ELEMENT_BYTES.get(element, 0)


def _all(message: bytes, number: int) -> Iterator[bytes]:
    return (value for field, value in _fields(message) if field == number and isinstance(value, bytes))


def _text(message: bytes, number: int) -> str:
    return next(_all(message, number), b"").decode("utf-8", errors="replace")


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        match key & 7:
            case 0:
                value, position = _varint(message, position)
                yield key >> 3, value
                continue
            case 1:
                size = 8
            case 2:
                size, position = _varint(message, position)
            case 5:
                size = 4
            case _:
                raise ValueError(f"wire type {key & 7} at byte {position}")
        if position + size > len(message):
            raise ValueError(f"a field of {size} bytes at byte {position} goes past the end")
        yield key >> 3, message[position : position + size]
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            break
        byte = message[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise ValueError(f"an integer at byte {position} does not end")
