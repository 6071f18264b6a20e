"""The handshake that opens a connection: each side shows that it knows the generation's key, and who it is.

    connector                                                listener
    hello      who, to whom, rail, its cuts,
               number of the hello, nonce, MAC     →
                                                   ←         challenge  nonce, MAC over both nonces
    proof      MAC over both nonces, repeated      →
                                                   ←         welcome    MAC over both nonces, repeated

A MAC covers the purpose of its message, both process numbers, the rail, how often the rail between the two was cut, and
the nonces; its key is of one generation of one job. So a message that is replayed, reflected, or of another connection,
generation or job is refused. Proof and welcome are long: a path that loses long packets, or carries next to nothing,
does not get through. This is bytes in, bytes out; the lengths are fixed.
"""

from __future__ import annotations

import hmac
import itertools
import secrets
import struct
from collections.abc import Callable
from typing import Final

from jaxcomm.distributed.secret import MAC_BYTES, is_mac, mac

VERSION: Final = 3  # one more for each change of records, handshake, frames, notices or fingerprints
_NAME, _ZERO = b"jaxcomm", ord("0")
_MAGIC = _NAME + bytes([_ZERO + VERSION])
_PARTIES = struct.Struct("<8sIIIIQ")  # magic, connector, listener, rail, cuts, number of the hello
_NONCE_BYTES = 32
_REPEATED = 512
_numbers = itertools.count(1)  # of the hellos of this process

HELLO_BYTES = _PARTIES.size + _NONCE_BYTES + MAC_BYTES
CHALLENGE_BYTES = _NONCE_BYTES + MAC_BYTES
PROOF_BYTES = WELCOME_BYTES = _REPEATED * MAC_BYTES


class Refused(Exception):
    """The other side is not the expected process of this job; says why."""


class NotExpected(Refused):
    """It is a process of this job, but no connection of that count of cuts is expected of it."""


class ConnectorSide:
    """The side that connects.

    side = ConnectorSide(key, process=2, listener=0, rail=0, cuts=0)
    send(side.hello); send(side.prove(receive(CHALLENGE_BYTES))); side.finish(receive(WELCOME_BYTES))

    Attributes:
      hello: the first message.
    """

    def __init__(self, key: bytes, *, process: int, listener: int, rail: int, cuts: int) -> None:
        self._key = key
        parties = _PARTIES.pack(_MAGIC, process, listener, rail, cuts, next(_numbers))
        signed = parties + secrets.token_bytes(_NONCE_BYTES)
        self.hello = signed + mac(key, "hello", signed)
        self._signed = signed

    def prove(self, challenge: bytes) -> bytes:
        """The answer to the listener's challenge.

        Raises:
          Refused: the listener does not know the key, or is another process.
        """
        signed = self._signed + challenge[:_NONCE_BYTES]
        if not is_mac(challenge[_NONCE_BYTES:], self._key, "challenge", signed):
            raise Refused("its challenge is not signed with this job's key")
        self._signed = signed
        return mac(self._key, "proof", self._signed) * _REPEATED

    def finish(self, welcome: bytes) -> None:
        """Ends the handshake.

        Raises:
          Refused: the listener did not accept.
        """
        if not hmac.compare_digest(welcome, mac(self._key, "welcome", self._signed) * _REPEATED):
            raise Refused("its welcome is not signed with this job's key")


class ListenerSide:
    """The side that is connected to; one for each connection.

    side = ListenerSide(key, process=0, processes=4, rail=0, newest=newest, expects=lambda peer, cuts: cuts == 0)
    send(side.challenge(receive(HELLO_BYTES))); send(side.welcome(receive(PROOF_BYTES)))

    Attributes:
      peer: the process that says hello; shown to be that process once `welcome` returns. -1 before.
      cuts: how often the rail between the two was cut before this connection, as it says.
    """

    def __init__(
        self,
        key: bytes,
        *,
        process: int,
        processes: int,
        rail: int,
        newest: dict[int, int],
        expects: Callable[[int, int], bool],
    ) -> None:
        """The side of one connection.

        Args:
          key: of the generation.
          process: this one.
          processes: of the job.
          rail: number of the rail.
          newest: the number of each process's last hello: the same for all connections of the rail.
          expects: whether a connection of this process, with this count of cuts, is expected.
        """
        self._key, self._process, self._processes, self._rail = key, process, processes, rail
        self._newest, self._expects = newest, expects
        self.peer, self.cuts = -1, 0

    def challenge(self, hello: bytes) -> bytes:
        """The answer to a hello.

        Raises:
          NotExpected: a connection of this process, but not with this count of cuts.
          Refused: it is not a hello of a higher process to this one, or not newer than its last.
        """
        signed = hello[:-MAC_BYTES]
        magic, peer, listener, rail, cuts, number = _PARTIES.unpack_from(hello)
        if not magic.startswith(_NAME):
            raise Refused("it does not speak jaxcomm's protocol")
        if magic != _MAGIC:
            raise Refused(
                f"it speaks version {magic[-1] - _ZERO} of jaxcomm's protocol, and this process version {VERSION}"
            )
        if not is_mac(hello[-MAC_BYTES:], self._key, "hello", signed):
            raise Refused("its hello is not signed with this job's key")
        if (listener, rail) != (self._process, self._rail) or not self._process < peer < self._processes:
            raise Refused(f"its hello is of process {peer} to process {listener} on rail {rail}")
        if number <= self._newest.get(peer, 0):
            raise Refused("its hello was used before, or a newer one was")
        self._newest[peer] = number
        if not self._expects(peer, cuts):
            raise NotExpected(f"process {peer} connects after {cuts} cuts of the rail, which is not expected")
        self.peer, self.cuts = peer, cuts
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self._signed = signed + nonce
        return nonce + mac(self._key, "challenge", self._signed)

    def welcome(self, proof: bytes) -> bytes:
        """The answer to a proof; the peer is who it says it is.

        Raises:
          Refused: it is not.
        """
        if not hmac.compare_digest(proof, mac(self._key, "proof", self._signed) * _REPEATED):
            raise Refused(f"it does not prove that it is process {self.peer}")
        return mac(self._key, "welcome", self._signed) * _REPEATED
