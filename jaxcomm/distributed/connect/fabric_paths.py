"""The paths over libfabric to other processes. Two processes agree on the keys of a path over a connection.

Each side sends a nonce and a MAC. The keys are derived from the generation's key and both nonces, so frames of other or
earlier paths are refused. The addresses of the endpoints are in the signed records of the processes. The connection
stays open, and shows that the other process lives and runs. The core itself tests the path.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from typing import NamedTuple

from jaxcomm.distributed.connect import path_keys
from jaxcomm.distributed.rails.named_rails import FABRIC
from jaxcomm.distributed.rails.rail_ends import RailEnd


class FabricPath(NamedTuple):
    """A path over libfabric to another process, on which both processes have agreed.

    Attributes:
      connection: a TCP connection, which carries no messages.
      address: the address of the other process's endpoint.
      sends: the key of frames to the other process, 16 bytes.
      receives: the key of frames from the other process, 16 bytes.
    """

    connection: socket.socket
    address: bytes
    sends: bytes
    receives: bytes


def agree(
    process: int,
    connections: Mapping[tuple[int, str], socket.socket],
    ends: Mapping[tuple[int, str], RailEnd],
    key: bytes,
    deadline: float,
) -> dict[tuple[int, str], FabricPath]:
    """Agrees on a path with each process over each rail. All these processes must call this at the same time.

    Args:
      process: the number of this process.
      connections: the authenticated, non-blocking connections, by process and rail. Each becomes part of a path.
      ends: the other processes' ends of the rails, by process and rail.
      key: the key of the generation.
      deadline: on the clock of `time.monotonic`.

    Raises:
      JaxcommError: a process has ended, has another key, or does not answer in time.
    """
    agreed = path_keys.exchange(FABRIC, "a path over libfabric", process, connections, key, deadline)
    paths = {}
    for to, connection in connections.items():
        end = ends[to].fabric
        assert end is not None  # rails of other kinds have no fabric path
        paths[to] = FabricPath(connection, bytes.fromhex(end.address), agreed[to].sends, agreed[to].receives)
    return paths


def agree_with(
    process: int, other: int, connection: socket.socket, end: RailEnd, key: bytes, deadline: float
) -> FabricPath:
    """Agrees on a path with one process over one rail, and takes ownership of the connection. Args as for `agree`.

    Raises:
      JaxcommError: the process does not agree; the connection is closed.
    """
    to = other, end.name
    with contextlib.ExitStack() as after_failure:
        after_failure.callback(connection.close)
        path = agree(process, {to: connection}, {to: end}, key, deadline)[to]
        after_failure.pop_all()
    return path
