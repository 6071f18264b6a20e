"""The handshake that opens a connection: each side proves which process it is and that it knows the generation's key.

    connector                                                listener
    hello      both processes, rail, its cuts,
               number of the hello, nonce, MAC     →
                                                   ←         challenge  nonce, MAC over both nonces
    proof      MAC over both nonces, repeated      →
                                                   ←         welcome    MAC over both nonces, repeated

A MAC covers the purpose of its message, both process numbers, the rail, the rail's number of cuts (failures so far),
and the nonces. The MAC's key belongs to one generation of one job. So messages that are replayed, reflected, or from
another connection, generation or job are refused. Proof and welcome are long, so the handshake fails on a path that
loses long packets or is very slow. The functions take and return bytes of fixed lengths.
"""

from __future__ import annotations

import hmac
import itertools
import secrets
import struct
from collections.abc import Callable
from typing import Final

from jaxcomm.distributed.connect.secret import MAC_BYTES, is_mac, mac

VERSION: Final = 6  # grows by 1 with each change to records, the handshake, frames, notices or fingerprints
_NAME, _ZERO = b"jaxcomm", ord("0")
_MAGIC = _NAME + bytes([_ZERO + VERSION])
_PARTIES = struct.Struct("<8sIIIIQ")  # magic, connector, listener, rail, cuts, number of the hello
_NONCE_BYTES = 32
_REPEATED = 512
_numbers = itertools.count(1)  # the numbers of this process's hellos

HELLO_BYTES = _PARTIES.size + _NONCE_BYTES + MAC_BYTES
CHALLENGE_BYTES = _NONCE_BYTES + MAC_BYTES
PROOF_BYTES = WELCOME_BYTES = _REPEATED * MAC_BYTES


class Refused(Exception):
    """The other side is not the expected process of this job; the text says why."""


class NotExpected(Refused):
    """The other side is a process of this job, but its hello states a number of cuts that is not expected."""


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
        """Returns the reply to the listener's challenge.

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
    """The side that accepts; one object for each connection.

    side = ListenerSide(key, process=0, processes=4, rail=0, newest=newest, expects=lambda peer, cuts: cuts == 0)
    send(side.challenge(receive(HELLO_BYTES))); send(side.welcome(receive(PROOF_BYTES)))

    Attributes:
      peer: the process that the hello names, proven after `welcome` returns; -1 before the hello.
      cuts: the rail's number of earlier cuts, as the hello states.
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
        """Creates the side of one connection.

        Args:
          key: the key of the generation.
          process: the number of this process.
          processes: the number of processes in the job.
          rail: the number of the rail.
          newest: the number of each process's last hello. All connections of the rail share this object.
          expects: takes a process and a number of cuts; returns whether a hello with these two values is expected.
        """
        self._key, self._process, self._processes, self._rail = key, process, processes, rail
        self._newest, self._expects = newest, expects
        self.peer, self.cuts = -1, 0

    def challenge(self, hello: bytes) -> bytes:
        """Returns the reply to a hello.

        Raises:
          NotExpected: no connection from this process with this number of cuts is expected.
          Refused: the hello has another protocol, version or key, is for another process or rail, is not from a process
            with a higher number, or is not newer than its sender's last hello.
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
            raise Refused(f"its hello is from process {peer} to process {listener} on rail {rail}")
        if number <= self._newest.get(peer, 0):
            raise Refused("its hello is not newer than the last one")
        self._newest[peer] = number
        if not self._expects(peer, cuts):
            raise NotExpected(f"process {peer} connects after {cuts} cuts of the rail, which is not expected")
        self.peer, self.cuts = peer, cuts
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self._signed = signed + nonce
        return nonce + mac(self._key, "challenge", self._signed)

    def welcome(self, proof: bytes) -> bytes:
        """Returns the reply to a proof, after which `peer` is proven.

        Raises:
          Refused: the proof is wrong.
        """
        if not hmac.compare_digest(proof, mac(self._key, "proof", self._signed) * _REPEATED):
            raise Refused(f"it does not prove that it is process {self.peer}")
        return mac(self._key, "welcome", self._signed) * _REPEATED
