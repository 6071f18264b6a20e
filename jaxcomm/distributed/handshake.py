"""The handshake that opens a connection: each side shows that it knows the generation's key, and who it is.

    connector                                                listener
    hello      who, to whom, rail, nonce, MAC      →
                                                   ←         challenge  nonce, MAC over both nonces
    proof      MAC over both nonces                →
                                                   ←         welcome    MAC over both nonces

A MAC covers the purpose of its message, both process numbers, the rail and the nonces; its key is of one generation of
one job. So a message that is replayed, reflected, or of another connection, generation or job is refused. This is bytes
in, bytes out; the lengths are fixed.
"""

from __future__ import annotations

import secrets
import struct

from jaxcomm.distributed.secret import MAC_BYTES, is_mac, mac

_MAGIC = b"jaxcomm1"
_PARTIES = struct.Struct("<8sIII")  # magic, connector, listener, rail
_NONCE_BYTES = 32

HELLO_BYTES = _PARTIES.size + _NONCE_BYTES + MAC_BYTES
CHALLENGE_BYTES = _NONCE_BYTES + MAC_BYTES
PROOF_BYTES = WELCOME_BYTES = MAC_BYTES


class Refused(Exception):
    """The other side is not the expected process of this job; says why."""


class ConnectorSide:
    """The side that connects.

    side = ConnectorSide(key, process=2, listener=0, rail=0)
    send(side.hello); send(side.prove(receive(CHALLENGE_BYTES))); side.finish(receive(WELCOME_BYTES))

    Attributes:
      hello: the first message.
    """

    def __init__(self, key: bytes, *, process: int, listener: int, rail: int) -> None:
        self._key = key
        signed = _PARTIES.pack(_MAGIC, process, listener, rail) + secrets.token_bytes(_NONCE_BYTES)
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
        return mac(self._key, "proof", self._signed)

    def finish(self, welcome: bytes) -> None:
        """Ends the handshake.

        Raises:
          Refused: the listener did not accept.
        """
        if not is_mac(welcome, self._key, "welcome", self._signed):
            raise Refused("its welcome is not signed with this job's key")


class ListenerSide:
    """The side that is connected to; one for each connection.

    side = ListenerSide(key, process=0, processes=4, rail=0, used=used)
    send(side.challenge(receive(HELLO_BYTES))); send(side.welcome(receive(PROOF_BYTES)))

    Attributes:
      peer: the process that says hello; shown to be that process once `welcome` returns.
    """

    def __init__(self, key: bytes, *, process: int, processes: int, rail: int, used: set[bytes]) -> None:
        """`used` are the nonces of earlier hellos: the same set for all connections of a generation."""
        self._key, self._process, self._processes, self._rail, self._used = key, process, processes, rail, used
        self.peer = -1

    def challenge(self, hello: bytes) -> bytes:
        """The answer to a hello.

        Raises:
          Refused: it is not a hello of a higher process to this one, or not the first of its kind.
        """
        signed = hello[:-MAC_BYTES]
        magic, peer, listener, rail = _PARTIES.unpack_from(hello)
        if magic != _MAGIC:
            raise Refused("it does not speak jaxcomm's protocol")
        if not is_mac(hello[-MAC_BYTES:], self._key, "hello", signed):
            raise Refused("its hello is not signed with this job's key")
        if (listener, rail) != (self._process, self._rail) or not self._process < peer < self._processes:
            raise Refused(f"its hello is of process {peer} to process {listener} on rail {rail}")
        if (nonce := signed[-_NONCE_BYTES:]) in self._used:
            raise Refused("its hello was used before")
        self._used.add(nonce)
        self.peer = peer
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self._signed = signed + nonce
        return nonce + mac(self._key, "challenge", self._signed)

    def welcome(self, proof: bytes) -> bytes:
        """The answer to a proof; the peer is who it says it is.

        Raises:
          Refused: it is not.
        """
        if not is_mac(proof, self._key, "proof", self._signed):
            raise Refused(f"it does not prove that it is process {self.peer}")
        return mac(self._key, "welcome", self._signed)
