"""Sockets whose send buffers are small and nearly full, or to which no long packets come."""

from __future__ import annotations

import ctypes
import socket
import struct
from typing import Any

_SO_ATTACH_FILTER = 26
_LENGTH, _IF_GREATER, _RETURN = 0x80, 0x25, 0x06  # of classic BPF


class Narrow(socket.socket):
    """Takes a few bytes at a time, and now and then none."""

    _calls = 0

    def send(self, data: Any, flags: int = 0, /) -> int:
        self._calls += 1
        if self._calls % 3 == 0:
            raise BlockingIOError
        return super().send(data[:50], flags)


class NarrowDoor(socket.socket):
    """Accepts such connections."""

    def accept(self) -> tuple[socket.socket, Any]:
        made, address = super().accept()
        return Narrow(fileno=made.detach()), address


def drop_packets(to: socket.socket, *, longer_than: int) -> None:
    """Has the kernel drop what comes to the socket and is longer, in bytes with TCP's header."""
    steps = [(_LENGTH, 0, 0, 0), (_IF_GREATER, 0, 1, longer_than), (_RETURN, 0, 0, 0), (_RETURN, 0, 0, 2**32 - 1)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = struct.pack("HL", len(steps), ctypes.addressof(code))
    to.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
