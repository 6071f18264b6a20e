"""Background traffic over one TCP connection. This file runs as a program, inside a namespace.

    python traffic.py receive ADDRESS PORT             # receives from one connection until it ends
    python traffic.py send ADDRESS PORT [SECONDS]      # sends at full speed; without SECONDS until it is killed

At the end the receiver prints the bytes received after the first read, and the seconds from the first read to the last.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time

_CHUNK = 256 * 1024
_CONNECT_S = 30.0  # seconds in which the receiver must begin to listen


def receive(address: str, port: int) -> None:
    """Receives from one sender until the connection ends."""
    buffer = bytearray(_CHUNK)
    with socket.create_server((address, port)) as server:
        connection, _ = server.accept()
    with connection:
        total = connection.recv_into(buffer)
        start = last = time.monotonic()
        first = total
        with contextlib.suppress(ConnectionError):
            while count := connection.recv_into(buffer):
                total += count
                last = time.monotonic()
    print(f"{total - first} bytes in {last - start:.6f} s", flush=True)


def send(address: str, port: int, seconds: float = float("inf")) -> None:
    """Sends until `seconds` have passed or the receiver has ended."""
    connection = _connect(address, port)
    data, end = bytes(_CHUNK), time.monotonic() + seconds
    with connection, contextlib.suppress(ConnectionError, TimeoutError):
        while (left := end - time.monotonic()) > 0:
            connection.settimeout(min(left, 3600.0))
            connection.send(data)


def _connect(address: str, port: int) -> socket.socket:
    end = time.monotonic() + _CONNECT_S
    while True:
        try:
            return socket.create_connection((address, port), timeout=_CONNECT_S)
        except ConnectionRefusedError:  # the receiver does not listen yet
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2], int(sys.argv[3]))
    else:
        send(sys.argv[2], int(sys.argv[3]), *map(float, sys.argv[4:]))
