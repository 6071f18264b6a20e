"""Connects to the listener of a process that has a lower number."""

from __future__ import annotations

import socket
import time

from jaxcomm.distributed.connect import handshake
from jaxcomm.distributed.connect.addresses import bound_socket
from jaxcomm.distributed.connect.handshake import Refused
from jaxcomm.distributed.connect.listener import HANDSHAKE_S
from jaxcomm.distributed.rails.rail_ends import DEFAULT, RailEnd
from jaxcomm.errors import JaxcommError

_PAUSE_S = 0.02  # pause between two attempts


class LongLost(TimeoutError):
    """The handshake's short messages arrived, but its long messages did not arrive before the deadline."""


def connect_to(
    peer: int, end: RailEnd, key: bytes, *, process: int, rail: int, interface: str, deadline: float
) -> socket.socket:
    """Returns a non-blocking connection with a process, authenticated on both sides.

    Retries if the listener closed this connection in favour of other connections, or if packets are lost.

    Args:
      peer: the process that listens.
      end: the peer's end of the rail.
      key: the key of the generation.
      process: the number of this process, which is higher than the peer's.
      rail: the number of the rail.
      interface: the interface to bind the socket to, or "".
      deadline: on the clock of `time.monotonic`.

    Raises:
      JaxcommError: no process listens at the address, the listener is another process, or the deadline has passed.
    """
    on = "" if end.name == DEFAULT else f" on rail {end.name}"
    where = f"process {peer} at {end.address}:{end.port}{on}"
    while True:
        side = handshake.ConnectorSide(key, process=process, listener=peer, rail=rail, cuts=0)
        try:
            return connect_once(side, end, interface, min(deadline, time.monotonic() + HANDSHAKE_S))
        except ConnectionRefusedError as error:
            raise JaxcommError(f"{where} refuses connections: {error.strerror}.\n  Cure: {_cure(end)}") from error
        except Refused as error:
            raise JaxcommError(
                f"another process answers for {where}: {error}.\n"
                "  Cure: start the job anew; the expected process may have ended."
            ) from error
        except OSError as error:
            if time.monotonic() + _PAUSE_S >= deadline:
                cure = MTU_CURE if isinstance(error, LongLost) else _cure(end)
                raise JaxcommError(f"{where} cannot be reached: {error.strerror or error}.\n  Cure: {cure}") from error
        time.sleep(_PAUSE_S)


def connect_once(side: handshake.ConnectorSide, end: RailEnd, interface: str, deadline: float) -> socket.socket:
    """Returns a connection as `connect_to` does, but makes only one attempt.

    Raises:
      Refused: another program listens at the address.
      LongLost: the path loses long messages.
      OSError: no program listens at the address, the listener closed the connection, or the deadline has passed.
      JaxcommError: no socket can be bound to the interface.
    """
    made = bound_socket(end.address, interface)
    try:
        _connect(made, side, (end.address, end.port), deadline)
        made.setblocking(False)
    except (OSError, Refused):
        made.close()
        raise
    return made


def _connect(made: socket.socket, side: handshake.ConnectorSide, address: tuple[str, int], deadline: float) -> None:
    made.settimeout(max(deadline - time.monotonic(), 0.001))
    made.connect(address)
    made.sendall(side.hello)
    proof = side.prove(_receive(made, handshake.CHALLENGE_BYTES, deadline))
    try:
        made.sendall(proof)
        side.finish(_receive(made, handshake.WELCOME_BYTES, deadline))
    except TimeoutError as error:
        kib = (handshake.PROOF_BYTES + handshake.WELCOME_BYTES) >> 10
        raise LongLost(f"short messages come through, but {kib} KiB did not in time") from error


def _receive(made: socket.socket, count: int, deadline: float) -> bytes:
    received = b""
    while len(received) < count:
        made.settimeout(max(deadline - time.monotonic(), 0.001))
        part = made.recv(count - len(received))
        if not part:
            raise ConnectionResetError("it hung up during the handshake")
        received += part
    return received


MTU_CURE = (
    "give the interfaces and switches on the path the same MTU (`ip link set DEVICE mtu BYTES`), or let the firewalls "
    'pass ICMP\'s "fragmentation needed"; if the MTU is right, the path is too slow or loses too many packets.'
)


def _cure(end: RailEnd) -> str:
    if end.address.startswith("127.") or end.address == "::1":
        words = "can be reached only from its own host: set JAXCOMM_INTERFACE to the interface between the hosts"
        return f"{end.address} {words}."
    firewall = "check whether that process has ended, and let its host's firewall accept this host's connections"
    return firewall + ("." if end.name == DEFAULT else f"; or leave {end.name} out of JAXCOMM_RAILS everywhere.")
