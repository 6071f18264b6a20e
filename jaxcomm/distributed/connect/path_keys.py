"""Signatures and keys with which two processes agree on a path: a TCP connection, or a path beside it.

Each side sends bytes of its own choice (its content), signed with the generation's key. The keys of the path are
derived from both contents, so packets, frames and records of other or earlier paths are refused.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from jaxcomm.distributed.connect.secret import MAC_BYTES, is_mac, mac
from jaxcomm.errors import JaxcommError

_PARTIES: Final = struct.Struct("<II")
_NONCE_BYTES: Final = 32


class CipherKeys(NamedTuple):
    """The two keys with which the core encrypts a connection. Each has 16 bytes for the cipher, then 12 for its nonces.

    Attributes:
      sends: the key for what this process sends, 28 bytes.
      receives: the key for what this process receives, 28 bytes.
    """

    sends: bytes
    receives: bytes


def signed(key: bytes, kind: str, sender: int, receiver: int, content: bytes) -> bytes:
    """Returns the content, followed by its signature. `kind` is the path's kind: "tcp", "udp" or "fabric"."""
    return content + mac(key, f"{kind} hello", _PARTIES.pack(sender, receiver) + content)


def check_signature(key: bytes, kind: str, sender: int, receiver: int, content: bytes, signature: bytes) -> None:
    """Raises JaxcommError if the signature differs from the one that `signed` makes for the sender."""
    if not is_mac(signature, key, f"{kind} hello", _PARTIES.pack(sender, receiver) + content):
        raise JaxcommError(f"process {sender} does not sign with this job's key.\n  Cure: start the job anew.")


class PathKeys:
    """The keys of a path between two processes. Each process derives the keys from the two contents.

    Attributes:
      sends: the key for what this process sends, 16 bytes.
      receives: the key for what this process receives, 16 bytes.
    """

    def __init__(self, key: bytes, kind: str, process: int, own: bytes, other: int, theirs: bytes) -> None:
        """Derives the keys from the generation's key, this process's content and the other process's content."""
        first, second = sorted([(process, own), (other, theirs)])
        self._session = mac(key, f"{kind} session", _PARTIES.pack(first[0], second[0]) + first[1] + second[1])
        self._directions = _PARTIES.pack(process, other), _PARTIES.pack(other, process)
        self.sends, self.receives = (mac(self._session, f"{kind} path", parties)[:16] for parties in self._directions)

    @property
    def cipher(self) -> CipherKeys:
        """The cipher keys of an encrypted path."""
        return CipherKeys(*(mac(self._session, "cipher", parties)[:28] for parties in self._directions))

    def trial(self, sender: int) -> bytes:
        """Returns the content of the trial that process `sender` sends over the path."""
        return mac(self._session, "trial", _PARTIES.pack(sender, 0))


def exchange(
    kind: str,
    what: str,
    process: int,
    connections: Mapping[tuple[int, str], socket.socket],
    key: bytes,
    deadline: float,
) -> dict[tuple[int, str], PathKeys]:
    """Exchanges nonces over connections, and returns the keys. The other processes must call this at the same time.

    Args:
      kind: the kind of the paths.
      what: the paths' name in errors, such as "a path over libfabric".
      process: the number of this process.
      connections: the authenticated, non-blocking connections, by process and rail.
      key: the key of the generation.
      deadline: on the clock of `time.monotonic`.

    Raises:
      JaxcommError: a process has ended, has another key, or does not answer in time.
    """
    nonces = {to: secrets.token_bytes(_NONCE_BYTES) for to in connections}
    for (other, name), connection in connections.items():
        with contextlib.suppress(OSError):  # _receive reports a closed connection
            connection.send(signed(key, kind, process, other, nonces[other, name]))
    keys = {}
    for (other, name), connection in connections.items():
        hello = _receive(connection, other, what, deadline)
        theirs, signature = hello[:_NONCE_BYTES], hello[_NONCE_BYTES:]
        check_signature(key, kind, other, process, theirs, signature)
        keys[other, name] = PathKeys(key, kind, process, nonces[other, name], other, theirs)
    return keys


def _receive(connection: socket.socket, other: int, what: str, deadline: float) -> bytes:
    received = b""
    try:
        while len(received) < _NONCE_BYTES + MAC_BYTES:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            part = connection.recv(_NONCE_BYTES + MAC_BYTES - len(received))
            if not part:
                raise ConnectionResetError
            received += part
    except OSError as error:
        raise JaxcommError(
            f"process {other} hung up, or did not answer, while {what} was agreed on.\n  Cure: see its error."
        ) from error
    finally:
        connection.setblocking(False)
    return received
