"""The keys of encrypted TCP connections. Two processes agree on them over the connection, after the handshake.

Each side sends a nonce and a MAC. The keys are derived from the generation's key and both nonces, so no two connections
have a key in common. From then on the core encrypts all bytes of the connection.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from typing import NamedTuple

from jaxcomm.distributed.connect import path_keys
from jaxcomm.distributed.connect.path_keys import CipherKeys


class TcpPath(NamedTuple):
    """An encrypted connection with another process.

    Attributes:
      connection: the connection.
      keys: the keys, on which both processes have agreed.
    """

    connection: socket.socket
    keys: CipherKeys


def agree(
    process: int, connections: Mapping[tuple[int, str], socket.socket], key: bytes, deadline: float
) -> dict[tuple[int, str], TcpPath]:
    """Agrees on keys with each process over each rail. The other processes must call this at the same time.

    Args:
      process: the number of this process.
      connections: the authenticated, non-blocking connections, by process and rail. Each becomes part of a path.
      key: the key of the generation.
      deadline: on the clock of `time.monotonic`.

    Raises:
      JaxcommError: a process has ended, has another key, or does not answer in time.
    """
    agreed = path_keys.exchange("tcp", "the encryption of a connection", process, connections, key, deadline)
    return {to: TcpPath(connection, agreed[to].cipher) for to, connection in connections.items()}


def agree_with(process: int, other: int, connection: socket.socket, rail: str, key: bytes, deadline: float) -> TcpPath:
    """Agrees on keys with one process over one rail, and takes ownership of the connection. Args as for `agree`.

    Raises:
      JaxcommError: the process does not agree. The connection is then closed.
    """
    with contextlib.ExitStack() as after_failure:
        after_failure.callback(connection.close)
        path = agree(process, {(other, rail): connection}, key, deadline)[other, rail]
        after_failure.pop_all()
    return path
