"""The UDP paths to other processes. Two processes agree on a path over a connection, then try it with full packets.

    each side sends                                   over
    hello    packet size, window, nonce, ports, MAC   the connection, at the same time
    trial    a packet of full size                    UDP, repeatedly
    received one byte                                 the connection, after a trial has arrived

The keys of a path are derived from the generation's key and both hellos, so packets of other or earlier paths are
refused. With JAXCOMM_UDP_PATHS each side opens several UDP sockets, and the n-th sockets of both sides make a path with
keys of its own; the side with fewer sockets determines the number of paths. Switches that hash ports spread these paths
over their links. Some links may be down, so one working path suffices. The transport finds the paths that do not work.

The connection stays open. When it closes, the other process has ended. While it is open, TCP acknowledgements
from the other host's kernel show that the other host is alive.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from jaxcomm.distributed.connect import path_keys
from jaxcomm.distributed.connect.addresses import bound_socket, make_room
from jaxcomm.distributed.connect.listener import HANDSHAKE_S
from jaxcomm.distributed.connect.path_keys import PathKeys
from jaxcomm.distributed.connect.secret import MAC_BYTES
from jaxcomm.distributed.connect.settings import MOST_UDP_PATHS, udp_paths
from jaxcomm.distributed.forks import close_in_children
from jaxcomm.distributed.rails.rail_ends import DEFAULT, RailEnd
from jaxcomm.errors import JaxcommError

_HELLO: Final = struct.Struct(f"<II32s{MOST_UDP_PATHS}H")  # packet size, window, nonce, ports (0: unused)
_HELLO_BYTES: Final = _HELLO.size + MAC_BYTES
_HEARD: Final = b"\x01"
_IP_MTU, _IPV6_MTU = 14, 24  # from linux/in.h and linux/in6.h
_MOST_MTU, _LEAST_MTU = 9000, 576  # larger packets gain nothing, because packets are sent in batches
_ROOM: Final = 4 << 20  # bytes of the receive buffer
_EACH_S: Final = 0.02  # time between two trials
_ALL_S: Final = 20.0  # seconds in which a path of a named rail must work


class UdpSocket(NamedTuple):
    """One path to another process.

    Attributes:
      socket: a connected UDP socket.
      sends: the key for outgoing packets: 16 bytes for "siphash", otherwise 28.
      receives: the key for incoming packets.
    """

    socket: socket.socket
    sends: bytes
    receives: bytes


class UdpPath(NamedTuple):
    """The agreed UDP paths to another process over one rail.

    Attributes:
      connection: a TCP connection, which carries no messages.
      sockets: one socket for each path.
      packet_bytes: the bytes of a full packet, without the headers of UDP and IP.
      window: the number of bytes that may be in flight to the other process on each path.
      seals: how packets are sealed: tags by "siphash" or "gmac", or encryption by "gcm".
    """

    connection: socket.socket
    sockets: tuple[UdpSocket, ...]
    packet_bytes: int
    window: int
    seals: str

    def close_sockets(self) -> None:
        """Closes all UDP sockets, but not the connection."""
        for each in self.sockets:
            each.socket.close()


class Agreed(NamedTuple):
    """The paths, and the errors of detected rails that have no path (`lacking`), by process and rail.

    For a rail that the user named, `agree` raises the error instead.
    """

    paths: dict[tuple[int, str], UdpPath]
    lacking: dict[tuple[int, str], JaxcommError]


def agree(
    process: int,
    connections: Mapping[tuple[int, str], socket.socket],
    ends: Mapping[str, RailEnd],
    key: bytes,
    deadline: float,
    after_failure: contextlib.ExitStack,
    seals: Mapping[int, str],
) -> Agreed:
    """Agrees on a path with each process over each rail. The other processes must call this at the same time.

    Args:
      process: the number of this process.
      connections: the authenticated, non-blocking connections, by process and rail. Each becomes part of a path.
      ends: the rails of this process, by name.
      key: the key of the generation.
      deadline: on the clock of `time.monotonic`.
      after_failure: gets the callbacks that close the UDP sockets.
      seals: for each process, how packets are sealed (`UdpPath.seals`). Both ends must pass the same value.

    Raises:
      JaxcommError: a rail that the user named loses packets of full size, or a process has ended or has another key.
    """
    now = time.monotonic()
    soon = {name: HANDSHAKE_S if end.network else _ALL_S for name, end in ends.items()}
    sides = {
        (other, name): _Side(process, other, made, ends[name], key, min(deadline, now + soon[name]))
        for (other, name), made in connections.items()
    }
    lacking = {}
    for side in sides.values():
        for each in side.sockets:
            after_failure.callback(each.close)
    with close_in_children(selectors.DefaultSelector()) as selector:
        for side in sides.values():
            selector.register(side.connection, selectors.EVENT_READ, side.read_connection)
            for i, each in enumerate(side.sockets):
                selector.register(each, selectors.EVENT_READ, functools.partial(side.read_packet, i))
        while late := {to: side for to, side in sides.items() if not side.is_done and to not in lacking}:
            for to, side in late.items():
                if time.monotonic() > side.deadline:
                    lacking[to] = side.unreachable()
                    if not side.end.network:
                        raise lacking[to]
                side.write_connection()
                side.try_packet()
            for event, _ in selector.select(_EACH_S):
                event.data()
    paths = {to: side.path(seals[to[0]]) for to, side in sides.items() if to not in lacking}
    return Agreed(paths, lacking)


def agree_with(
    process: int,
    other: int,
    connection: socket.socket,
    end: RailEnd,
    key: bytes,
    deadline: float,
    seals: str,
) -> UdpPath:
    """Agrees on a path with one process over one rail, and takes ownership of the connection. Args as for `agree`.

    Raises:
      JaxcommError, OSError: no path works. The connection is then closed.
    """
    to = other, end.name
    with contextlib.ExitStack() as after_failure:
        after_failure.callback(connection.close)
        ends = {end.name: end}
        agreed = agree(process, {to: connection}, ends, key, deadline, after_failure, {other: seals})
        for error in agreed.lacking.values():
            raise error
        after_failure.pop_all()
    return agreed.paths[to]


class _Side:
    """This process's side of the agreement with another process, over one rail."""

    def __init__(
        self, process: int, other: int, connection: socket.socket, end: RailEnd, key: bytes, deadline: float
    ) -> None:
        self.other, self.connection, self.end, self.deadline = other, connection, end, deadline
        self._process, self._key = process, key
        own, self._peer = connection.getsockname(), connection.getpeername()
        self.sockets = [bound_socket(own[0], end.interface, socket.SOCK_DGRAM) for _ in range(udp_paths())]
        for each in self.sockets:
            each.setblocking(False)
            each.bind((own[0], 0, *own[2:]))
            make_room(each, _ROOM)
        udp = self.sockets[0]
        udp.connect(self._peer)  # for the path's MTU; the peer's UDP ports arrive with its hello
        room = udp.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 4  # SO_RCVBUF includes the kernel's overhead
        ports = [each.getsockname()[1] for each in self.sockets]
        unused = [0] * (MOST_UDP_PATHS - len(ports))
        content = _HELLO.pack(full_packet_bytes(udp), room, secrets.token_bytes(32), *ports, *unused)
        self._hello, self._received, self._theirs = content, b"", b""
        self._keys: list[PathKeys] = []  # the keys of each path on which both sides agree
        self._is_reached = self._has_received = False
        self._unsent = path_keys.signed(key, "udp", process, other, content)

    @property
    def is_done(self) -> bool:
        return self._is_reached and self._has_received and not self._unsent

    def write_connection(self) -> None:
        """Sends as much of this side's hello and acknowledgement as the connection accepts."""
        if self._unsent:
            with contextlib.suppress(OSError):  # a full buffer, or a closed connection, which read_connection reports
                self._unsent = self._unsent[self.connection.send(self._unsent) :]

    def read_connection(self) -> None:
        """Reads the other side's hello, then its acknowledgement."""
        awaited = len(_HEARD) if self._theirs else _HELLO_BYTES
        try:
            part = self.connection.recv(awaited - len(self._received))
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            raise JaxcommError(
                f"process {self.other} hung up during the trial of the UDP path to it.\n  Cure: see its error."
            )
        self._received += part
        if len(self._received) < awaited:
            return
        message, self._received = self._received, b""
        if self._theirs:
            self._is_reached = True
            return
        content, signature = message[: _HELLO.size], message[_HELLO.size :]
        path_keys.check_signature(self._key, "udp", self.other, self._process, content, signature)
        self._theirs = content
        packet_bytes, self._window, _, *ports = _HELLO.unpack(content)
        self._packet_bytes = min(packet_bytes, full_packet_bytes(self.sockets[0]))
        for i, (each, port) in enumerate(zip(self.sockets, filter(None, ports), strict=False)):
            each.connect((self._peer[0], port, *self._peer[2:]))
            kind = f"udp {i}" if i else "udp"
            self._keys.append(PathKeys(self._key, kind, self._process, self._hello, self.other, content))

    def read_packet(self, number: int) -> None:
        with contextlib.suppress(OSError):  # the network reports errors of earlier packets
            packet = self.sockets[number].recv(1 << 16)
            is_trial = number < len(self._keys) and packet == self._trial(number, self.other)
            if is_trial and not self._has_received:
                self._has_received = True
                self._unsent += _HEARD

    def try_packet(self) -> None:
        if self._theirs and not self._is_reached:
            for i in range(len(self._keys)):
                with contextlib.suppress(OSError):
                    self.sockets[i].send(self._trial(i, self._process))

    def unreachable(self) -> JaxcommError:
        on = "" if self.end.name == DEFAULT else f" on rail {self.end.name}"
        if not self._theirs:
            return JaxcommError(
                f"process {self.other} did not agree on a UDP path{on} in time.\n  Cure: see its error."
            )
        way = f"from process {self.other}" if self._is_reached else f"to process {self.other} at {self._peer[0]}"
        way += on
        return JaxcommError(
            f"no UDP packets of {self._packet_bytes} bytes come through {way}.\n"
            "  Cure: let the hosts' firewalls pass UDP between them, check that the whole path supports the "
            "interfaces' MTU, or set JAXCOMM_TRANSPORT=tcp."
        )

    def path(self, seals: str) -> UdpPath:
        for unused in self.sockets[len(self._keys) :]:
            unused.close()
        sockets = tuple(
            UdpSocket(each, *((keys.sends, keys.receives) if seals == "siphash" else keys.cipher))
            for each, keys in zip(self.sockets, self._keys, strict=False)
        )
        return UdpPath(self.connection, sockets, self._packet_bytes, self._window, seals)

    def _trial(self, number: int, sender: int) -> bytes:
        return self._keys[number].trial(sender).ljust(self._packet_bytes, b"\0")


def full_packet_bytes(connected: socket.socket) -> int:
    """Returns the largest payload of a UDP packet to the other side, by the kernel's MTU of the path."""
    is_v6 = connected.family == socket.AF_INET6
    level, option, headers = (socket.IPPROTO_IPV6, _IPV6_MTU, 48) if is_v6 else (socket.IPPROTO_IP, _IP_MTU, 28)
    return min(max(connected.getsockopt(level, option), _LEAST_MTU), _MOST_MTU) - headers
