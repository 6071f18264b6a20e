"""Accepts connections from processes with higher numbers."""

from __future__ import annotations

import functools
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable

from jaxcomm.distributed.connect import handshake
from jaxcomm.distributed.connect.handshake import NotExpected, Refused
from jaxcomm.distributed.forks import close_in_children
from jaxcomm.log import say_once

HANDSHAKE_S = 5.0  # time in which a connection must be authenticated
_MOST_PENDING = 64  # maximum connections in the handshake; above it, the oldest one without a valid hello is closed
_BACKLOG = 1024


class Listener:
    """A thread that accepts connections that pass the handshake, until `close`.

    listener = Listener(bound, key, process=0, processes=4, rail=0)
    sockets = listener.close()

    The number and the age of connections without a valid hello are bounded, so a flood of such connections blocks no
    process. A process whose hello was too late connects again. A process's newest connection replaces its earlier
    connections.

    Attributes:
      address: the IP address and port at which the listener listens.
      strangers: the number of connections that were closed because they did not pass the handshake.
    """

    def __init__(
        self,
        bound: socket.socket,
        key: bytes,
        *,
        process: int,
        processes: int,
        rail: int,
        expects: Callable[[int, int], bool] = lambda peer, cuts: cuts == 0,
        accept: Callable[[int, int, socket.socket], None] | None = None,
    ) -> None:
        """Starts to listen.

        Args:
          bound: a TCP socket, bound to an address. The caller owns the socket and keeps it open.
          key: the key of the generation.
          process: the number of this process.
          processes: the number of processes in the job.
          rail: the number of the rail.
          expects: takes a process and a number of cuts; returns whether a hello with these two values is expected. Runs
            on the listener's thread.
          accept: called on the listener's thread for each connection, with the process, the number of cuts and the
            non-blocking connection. With None, the listener keeps the connections for `close`.
        """
        self.strangers = 0
        self.address: tuple[str, int] = bound.getsockname()[:2]
        self._socket = bound
        self._process = process
        self._side: Callable[[], handshake.ListenerSide] = functools.partial(
            handshake.ListenerSide, key, process=process, processes=processes, rail=rail, newest={}, expects=expects
        )
        self._accept = accept or self._keep
        self._pending: dict[int, _Pending] = {}  # by descriptor, oldest first
        self._accepted: dict[int, socket.socket] = {}
        self._wake = close_in_children(os.fdopen(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC), "wb", buffering=0))
        self._closing = False
        bound.setblocking(False)
        bound.listen(_BACKLOG)
        self._selector = close_in_children(selectors.DefaultSelector())
        self._selector.register(bound, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="jaxcomm listener", daemon=True)
        self._thread.start()

    def close(self) -> dict[int, socket.socket]:
        """Ends the thread. Returns the connections that the listener kept, non-blocking; the caller then owns them."""
        if not self._closing:
            self._closing = True
            os.eventfd_write(self._wake.fileno(), 1)
            self._thread.join()
            self._wake.close()
        accepted, self._accepted = self._accepted, {}
        return accepted

    def abandon(self) -> None:
        """Ends the thread, and closes the connections that the listener kept."""
        for connection in self.close().values():
            connection.close()

    def _run(self) -> None:
        while not self._closing:
            oldest = next(iter(self._pending.values()), None)
            timeout = None if oldest is None else max(0.0, oldest.expires - time.monotonic())
            for key, _ in self._selector.select(timeout):
                if key.fileobj is self._socket:
                    self._begin()
                elif (pending := self._pending.get(key.fd)) is not None:
                    self._advance(pending)
            for pending in [*self._pending.values()]:
                if pending.expires > time.monotonic():
                    break
                self._refuse(pending, f"its handshake took more than {HANDSHAKE_S:.3g} s")
        for pending in self._pending.values():
            pending.connection.close()
        self._selector.close()

    def _begin(self) -> None:
        try:
            connection = close_in_children(self._socket.accept()[0])
        except OSError:
            if not self._give_way("this process has no free file descriptor"):
                time.sleep(0.01)  # other threads may close descriptors
            return
        connection.setblocking(False)
        self._pending[connection.fileno()] = _Pending(connection, self._side(), time.monotonic() + HANDSHAKE_S)
        self._selector.register(connection, selectors.EVENT_READ)
        if len(self._pending) > _MOST_PENDING:
            self._give_way("too many connections were in their handshake")

    def _give_way(self, reason: str) -> bool:
        """Closes the oldest connection without a valid hello. Returns whether such a connection existed.

        Connections with a valid hello stay open. They are few, because a process's newer connection replaces the older.
        """
        oldest = next((pending for pending in self._pending.values() if pending.side.peer < 0), None)
        if oldest is not None:
            self._refuse(oldest, reason)
        return oldest is not None

    def _advance(self, pending: _Pending) -> None:
        try:
            is_answered = pending.advance()
            awaited = selectors.EVENT_WRITE if pending.answer else selectors.EVENT_READ
            self._selector.modify(pending.connection, awaited)
        except NotExpected:
            self._drop(pending)
        except (Refused, OSError) as error:
            self._refuse(pending, str(error))
        else:
            if is_answered:
                self._answered(pending)

    def _answered(self, pending: _Pending) -> None:
        peer = pending.side.peer
        for other in [*self._pending.values()]:
            if other.side.peer == peer and other is not pending:  # the process has abandoned `other`
                self._drop(other)
        if pending.is_done:
            self._forget(pending)
            self._accept(peer, pending.side.cuts, pending.connection)

    def _keep(self, peer: int, _: int, connection: socket.socket) -> None:
        if (earlier := self._accepted.pop(peer, None)) is not None:
            earlier.close()
        self._accepted[peer] = connection

    def _refuse(self, pending: _Pending, reason: str) -> None:
        self.strangers += 1
        if self.strangers == 1:
            say_once(
                f"process {self._process} closed a connection from {_peer(pending.connection)} to its port "
                f"{self.address[1]}: {reason}. Further ones are counted, not logged."
            )
        self._drop(pending)

    def _drop(self, pending: _Pending) -> None:
        self._forget(pending)
        pending.connection.close()

    def _forget(self, pending: _Pending) -> None:
        self._selector.unregister(pending.connection)
        del self._pending[pending.connection.fileno()]


class _Pending:
    """A connection in its handshake."""

    def __init__(self, connection: socket.socket, side: handshake.ListenerSide, expires: float) -> None:
        self.connection, self.side, self.expires = connection, side, expires
        self.is_done = self._is_last = False
        self._received, self._awaited = b"", handshake.HELLO_BYTES
        self.answer = b""  # the unsent part of the reply

    def advance(self) -> bool:
        """Reads the current message, but no bytes after it, and sends the reply. Returns whether the reply is sent.

        Raises:
          Refused, OSError: the peer is not a process of the job, or has closed the connection.
        """
        try:
            if not self.answer and not self._reads_whole():
                return False
            self.answer = self.answer[self.connection.send(self.answer) :]
        except BlockingIOError:
            return False
        self.is_done = not self.answer and self._is_last
        return not self.answer

    def _reads_whole(self) -> bool:
        part = self.connection.recv(self._awaited - len(self._received))
        if not part:
            raise Refused("it hung up")
        self._received += part
        if len(self._received) < self._awaited:
            return False
        message, self._received = self._received, b""
        self._is_last = self.side.peer >= 0
        self.answer = self.side.welcome(message) if self._is_last else self.side.challenge(message)
        self._awaited = handshake.PROOF_BYTES
        return True


def _peer(connection: socket.socket) -> str:
    try:
        host, port, *_ = connection.getpeername()
    except OSError:
        return "a peer that is gone"
    return f"{host}:{port}"
