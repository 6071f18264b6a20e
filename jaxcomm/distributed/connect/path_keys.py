"""The signatures and keys by which two processes agree on a path beside an authenticated connection.

Each side sends a content of its own choice, signed with the generation's key. The keys of the path are derived from
both contents, so packets and frames of other or earlier paths are refused.
"""

from __future__ import annotations

import struct
from typing import Final

from jaxcomm.distributed.connect.secret import is_mac, mac
from jaxcomm.errors import JaxcommError

_PARTIES: Final = struct.Struct("<II")


def signed(key: bytes, kind: str, sender: int, receiver: int, content: bytes) -> bytes:
    """Returns a content with its signature. `kind` is the path's: "udp" or "fabric"."""
    return content + mac(key, f"{kind} hello", _PARTIES.pack(sender, receiver) + content)


def check_signature(key: bytes, kind: str, sender: int, receiver: int, content: bytes, signature: bytes) -> None:
    """Raises JaxcommError if `signed` of the sender has not made the signature."""
    if not is_mac(signature, key, f"{kind} hello", _PARTIES.pack(sender, receiver) + content):
        raise JaxcommError(f"process {sender} does not sign with this job's key.\n  Cure: start the job anew.")


class PathKeys:
    """The keys of a path between two processes, which both derive from both contents.

    Attributes:
      sends: the key of what the first process given sends, 16 bytes.
      receives: the key of what it receives, 16 bytes.
    """

    def __init__(self, key: bytes, kind: str, process: int, own: bytes, other: int, theirs: bytes) -> None:
        """Derives the keys from the generation's key, this process's content, and that of the other process."""
        first, second = sorted([(process, own), (other, theirs)])
        self._session = mac(key, f"{kind} session", _PARTIES.pack(first[0], second[0]) + first[1] + second[1])
        self.sends = mac(self._session, f"{kind} path", _PARTIES.pack(process, other))[:16]
        self.receives = mac(self._session, f"{kind} path", _PARTIES.pack(other, process))[:16]

    def trial(self, sender: int) -> bytes:
        """Returns the content of a trial of the path that a process sends."""
        return mac(self._session, "trial", _PARTIES.pack(sender, 0))
