"""The structs that the core's C functions take. cc/ffi/api/arguments.h, cc/simulate and cc/search declare them in C."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_double, c_int32, c_int64, c_uint64, c_void_p
from typing import Any

import numpy as np


class Struct(ctypes.Structure):
    """A C struct that keeps alive the arrays to which it points."""

    def __init__(self, *values: Any) -> None:
        """Takes a value for each field: a number, a text, a struct, or, for a pointer, a contiguous array."""
        super().__init__(*map(_plain, values))
        self._kept = values


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous:
            raise ValueError("an array for the core is not contiguous")
        return value.ctypes.data
    return value.encode() if isinstance(value, str) else value


class ConnectionKeys(Struct):
    _fields_ = (
        ("sends", c_char_p),
        ("receives", c_char_p),
    )


class UdpConnection(Struct):
    _fields_ = (
        ("connection", c_int32),
        ("sockets", c_void_p),
        ("keys", c_char_p),
        ("num_paths", c_int64),
        ("seals", c_char_p),
        ("packet_bytes", c_int64),
        ("window", c_int64),
        ("priorities", c_int64),
    )


class FabricConnection(Struct):
    _fields_ = (
        ("connection", c_int32),
        ("address", c_char_p),
        ("address_bytes", c_int64),
        ("sends", c_char_p),
        ("receives", c_char_p),
    )


class RailShares(Struct):
    _fields_ = (
        ("min_bytes", c_void_p),
        ("shares", c_void_p),
        ("ranges", c_int64),
        ("rails", c_int64),
    )


class MessageRun(Struct):
    _fields_ = (
        ("number", c_uint64),
        ("call", c_char_p),
        ("list", c_char_p),
        ("processes", c_void_p),
        ("devices", c_void_p),
        ("ranks", c_int64),
        ("bytes", c_void_p),
        ("num_bytes", c_int64),
    )


class CollectiveLists(Struct):
    _fields_ = (
        ("flat_bytes", c_int64),
        ("flat_bytes_on_one_host", c_int64),
        ("ring_bytes", c_int64),
        ("ring_bytes_of_several", c_int64),
        ("plan", c_char_p),
        ("ranks", c_int64),
        ("min_bytes", c_void_p),
        ("names", c_char_p),
        ("ranges", c_int64),
        ("tries", c_int64),
    )


class PlanSwitch(Struct):
    _fields_ = (
        ("plan", c_char_p),
        ("ranks", c_int64),
        ("min_bytes", c_void_p),
        ("names", c_char_p),
        ("sizes", c_void_p),
        ("bytes", c_char_p),
        ("ranges", c_int64),
        ("communicators", c_void_p),
        ("launches", c_void_p),
        ("num_communicators", c_int64),
    )


class IndexLists(Struct):
    _fields_ = (
        ("first", c_void_p),
        ("members", c_void_p),
    )


class MessageNetwork(Struct):
    _fields_ = (
        ("messages", c_int64),
        ("nodes", c_int64),
        ("links", c_int64),
        ("after_end", IndexLists),
        ("after_free", IndexLists),
        ("waits", c_void_p),
        ("stages", IndexLists),
        ("link", c_void_p),
        ("taken", c_void_p),
        ("slowest", c_void_p),
    )


class MessageTimes(Struct):
    _fields_ = (
        ("start", c_void_p),
        ("free", c_void_p),
        ("end", c_void_p),
    )


class PendingMoves(Struct):
    _fields_ = (
        ("count", c_int64),
        ("ranks", c_int64),
        ("chunks", c_int64),
        ("ports", c_int64),
        ("routes", c_int64),
        ("src", c_void_p),
        ("dst", c_void_p),
        ("chunk", c_void_p),
        ("kind", c_void_p),
        ("seconds", c_void_p),
        ("route", c_void_p),
        ("urgency", c_void_p),
        ("ports_of", IndexLists),
        ("port_seconds", c_void_p),
    )


class MoveRounds(Struct):
    _fields_ = (
        ("round", c_void_p),
        ("phase", c_void_p),
    )


class TreeNetwork(Struct):
    _fields_ = (
        ("ranks", c_int64),
        ("chunks", c_int64),
        ("links", c_int64),
        ("alpha", c_double),
        ("ready", c_void_p),
        ("remote", c_void_p),
        ("port_s", c_void_p),
        ("link", c_void_p),
        ("link_s", c_void_p),
    )


class ChunkTrees(Struct):
    _fields_ = (
        ("up", c_void_p),
        ("down", c_void_p),
        ("partner", c_void_p),
        ("order", c_void_p),
    )


class TreeTimes(Struct):
    _fields_ = (
        ("start", c_void_p),
        ("end", c_void_p),
    )
