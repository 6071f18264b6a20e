"""Restores the cut rails of this process as soon as they carry bytes again.

The core reports which rails are cut. If the interface of a cut rail has another address than before, or appears only
now, this process publishes the new address, and listens there. For each cut rail, the process with the higher number
reconnects, and the process with the lower number listens until the rail works. The handshake includes the rail's number
of cuts so far, which identifies the connection. Over UDP and libfabric both processes then agree on a new path with new
keys, so that packets and frames from before the cut are refused.
"""

from __future__ import annotations

import atexit
import functools
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from jaxcomm.distributed.connect import fabric_paths, handshake, records, tcp_paths, udp_paths
from jaxcomm.distributed.connect.addresses import listening_socket
from jaxcomm.distributed.connect.connector import MTU_CURE, LongLost, connect_once
from jaxcomm.distributed.connect.fabric_paths import FabricPath
from jaxcomm.distributed.connect.handshake import Refused
from jaxcomm.distributed.connect.interfaces import address_of
from jaxcomm.distributed.connect.listener import Listener
from jaxcomm.distributed.connect.path_keys import CipherKeys
from jaxcomm.distributed.connect.records import Record
from jaxcomm.distributed.connect.tcp_paths import TcpPath
from jaxcomm.distributed.connect.udp_paths import UdpPath
from jaxcomm.distributed.forks import run_at_exit
from jaxcomm.distributed.rails.changed_addresses import ChangedAddresses
from jaxcomm.distributed.rails.named_rails import FABRIC
from jaxcomm.distributed.rails.outages import Outages, RailTo
from jaxcomm.errors import JaxcommError
from jaxcomm.log import say, say_once

_POLL_S = 0.25
_ATTEMPT_S = 1.0  # timeout of an attempt to connect, and the shortest time between the starts of two attempts
_MOST_ATTEMPTS = 32  # the largest number of attempts at the same time


class RailsCore(Protocol):
    """The part of the core that carries messages over several rails."""

    def lost_rails(self) -> list[tuple[int, int, int]]:
        """Returns the cut rails that can be restored: each rail's process, number, and number of cuts so far."""

    def restore_tcp(self, process: int, rail: int, cuts: int, fd: int, keys: CipherKeys | None) -> None:
        """Restores a cut rail with a connected, authenticated, non-blocking socket. On failure closes the socket.

        `keys` is None if the socket's bytes are not encrypted.

        Raises:
          JaxcommError: the rail is not cut, or its number of cuts is not `cuts`.
        """

    def restore_udp(self, process: int, rail: int, cuts: int, path: UdpPath) -> None:
        """Restores a cut rail with a UDP path, or closes the path's sockets and raises as `restore_tcp` does."""

    def restore_fabric(self, process: int, rail: int, cuts: int, path: FabricPath) -> None:
        """Restores a cut rail with a path over libfabric, or closes the path's connection and raises.

        Waits up to half a second for the acknowledgement of a trial of the path. Without it the rail stays cut.
        """


class Repair:
    """Reconnects cut rails in the background, until `close`.

    repair = Repair(core, own, peers, {"eth0": "tcp"}, key, {"eth0": bound}, ChangedAddresses(own.process))
    repair.close()

    Closes itself at process exit, before exit handlers that were registered earlier.
    """

    def __init__(
        self,
        core: RailsCore,
        own: Record,
        peers: Mapping[int, Record],
        kinds: Mapping[str, str],
        key: bytes,
        bound: Mapping[str, socket.socket],
        addresses: ChangedAddresses,
        down: Iterable[tuple[int, str]] = (),
    ) -> None:
        """Starts the thread.

        Args:
          core: called from several threads, one at a time.
          own: the record of this process.
          peers: the records of the other processes.
          kinds: each rail's kind, "tcp", "udp" or "fabric", in the order of the rails' numbers in the core.
          key: the key of the generation.
          bound: for each rail that has an address in `own`, the socket at this address. `Repair` owns these sockets.
          addresses: the addresses that have changed since the start.
          down: the processes and rails that were not connected at the start; such rails count as cut once.
        """
        self._core, self._own, self._peers, self._key = core, own, peers, key
        self._names, self._kinds = [*kinds], [*kinds.values()]
        self._ends = {end.name: end for end in own.rails}  # with the addresses that the rails have now
        self._addresses = addresses
        self._unpublished: set[str] = set()  # rails of this process whose new address is not published yet
        self._changed: dict[RailTo, tuple[str, int]] = {}  # the new addresses of other processes
        self._asked = -math.inf  # the time of the last query to the store
        self._asking = threading.Lock()  # held during a query, so that only one thread waits for the store
        self._bound = dict(bound)
        self._listeners: dict[str, Listener] = {}
        self._began: dict[RailTo, float] = {}  # the start of each rail's last attempt
        self._lock = threading.Lock()  # guards the outages and the calls to the core; no core call follows `close`
        self._outages = Outages(self._names, (RailTo(process, self._names.index(name)) for process, name in down))
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jaxcomm repair", daemon=True)
        self._thread.start()
        self._at_exit = run_at_exit(self.close)

    def close(self) -> None:
        """Ends the thread. Afterwards this object neither calls the core nor listens."""
        atexit.unregister(self._at_exit)
        with self._lock:
            self._end.set()
        self._thread.join()
        for listener in self._listeners.values():
            listener.close()
        for each in self._bound.values():
            each.close()

    def _run(self) -> None:
        while not self._end.wait(_POLL_S):
            lost = self._lost()
            for name in {self._names[rail] for _, rail in lost}:
                self._follow_address(name)
            if lost and self._asked + _ATTEMPT_S <= time.monotonic():
                self._asked = time.monotonic()
                _run_aside(functools.partial(self._exchange_addresses, [*lost]))
            self._listen({self._names[rail] for process, rail in lost if process > self._own.process})
            self._connect({to: cuts for to, cuts in lost.items() if to.process < self._own.process})

    def _lost(self) -> dict[RailTo, int]:
        """Returns the number of cuts so far of each rail that is cut now."""
        with self._lock:
            if self._end.is_set():
                return {}
            lost = {RailTo(process, rail): cuts for process, rail, cuts in self._core.lost_rails()}
            self._outages.update(lost)
            return lost

    def _follow_address(self, name: str) -> None:
        """Listens at the address that a rail's interface has now, if the address has changed."""
        end = self._ends[name]
        found = address_of(end.interface) if end.interface else None
        if found is None or found.address == end.address:
            return
        try:
            bound = listening_socket(found.address, end.interface)
        except JaxcommError:
            return  # the address may have changed again
        if (listener := self._listeners.pop(name, None)) is not None:
            listener.close()
        if (before := self._bound.get(name)) is not None:
            before.close()
        self._bound[name] = bound
        self._ends[name] = end._replace(address=found.address, port=bound.getsockname()[1])
        self._unpublished.add(name)
        earlier = f"no longer {end.address}" if end.address else "and had none before"
        say(f"the rail {name} has the address {found.address} now, {earlier}.")

    def _exchange_addresses(self, lost: Iterable[RailTo]) -> None:
        """Publishes this process's new addresses, and looks up the new addresses of the other ends of cut rails.

        The job's key-value store may itself be out of reach while a rail is cut.
        """
        if not self._asking.acquire(blocking=False):
            return
        try:
            for name in [*self._unpublished]:
                end = self._ends[name]
                self._addresses.publish(name, end.address, end.port)
                if self._ends[name] == end:
                    self._unpublished.discard(name)
            for to in lost:
                if to.process < self._own.process and (found := self._addresses.find(to.process, self._names[to.rail])):
                    self._changed[to] = found
        except JaxcommError:
            pass  # a later poll asks the store again
        finally:
            self._asking.release()

    def _listen(self, names: set[str]) -> None:
        """Listens on these rails of this process, and on no other rails."""
        for name in self._listeners.keys() - names:
            self._listeners.pop(name).close()
        for number, end in enumerate(self._own.rails):
            if end.name in names and end.name not in self._listeners and end.name in self._bound:
                rail = self._names.index(end.name)
                self._listeners[end.name] = Listener(
                    self._bound[end.name],
                    self._key,
                    process=self._own.process,
                    processes=max(self._own.process, *self._peers) + 1,
                    rail=number,
                    expects=functools.partial(self._expects, rail=rail),
                    accept=functools.partial(self._accept, rail=rail),
                )

    def _expects(self, process: int, cuts: int, *, rail: int) -> bool:
        return self._lost().get(RailTo(process, rail)) == cuts

    def _connect(self, lost: Mapping[RailTo, int]) -> None:
        """Starts the attempts that are due, beginning with the rails whose last attempt is the oldest."""
        now = time.monotonic()
        under_way = sum(began + _ATTEMPT_S > now for began in self._began.values())
        due = [to for to in lost if self._began.get(to, -math.inf) + _ATTEMPT_S <= now]
        for to in sorted(due, key=lambda to: self._began.get(to, -math.inf))[: _MOST_ATTEMPTS - under_way]:
            self._began[to] = now
            _run_aside(functools.partial(self._attempt, to, lost[to], now + _ATTEMPT_S))

    def _accept(self, process: int, cuts: int, connection: socket.socket, *, rail: int) -> None:
        restore = functools.partial(
            self._restore, process, cuts, connection, rail=rail, deadline=time.monotonic() + _ATTEMPT_S
        )
        # The listener's thread must not wait for an agreement on a path.
        is_agreed = self._kinds[rail] == "tcp" and not self._own.encrypts
        restore() if is_agreed else _run_aside(restore)

    def _attempt(self, to: RailTo, cuts: int, deadline: float) -> None:
        name = self._names[to.rail]
        number, end = next((i, end) for i, end in enumerate(self._peers[to.process].rails) if end.name == name)
        interface = self._ends[name].interface
        side = handshake.ConnectorSide(
            self._key, process=self._own.process, listener=to.process, rail=number, cuts=cuts
        )
        try:
            address, port = self._changed.get(to, (end.address, end.port))
            if not address:  # the interface of the other process has not appeared yet
                return
            made = connect_once(side, end._replace(address=address, port=port), interface, deadline)
        except LongLost as error:
            say_once(f"the rail {name}, to process {to.process}, does not come back: {error}.\n  Cure: {MTU_CURE}")
            return  # another attempt follows
        except (OSError, Refused, JaxcommError):
            return  # another attempt follows
        self._restore(to.process, cuts, made, rail=to.rail, deadline=deadline)

    def _restore(self, process: int, cuts: int, connection: socket.socket, *, rail: int, deadline: float) -> None:
        name, kind = self._names[rail], self._kinds[rail]
        path: TcpPath | UdpPath | FabricPath | None = None
        own = self._own.process
        try:
            if kind == "udp":
                end, seals = self._ends[name], records.seals(self._own, self._peers[process])
                path = udp_paths.agree_with(own, process, connection, end, self._key, deadline, seals)
            elif kind == FABRIC:
                end = next(each for each in self._peers[process].rails if each.name == name)
                path = fabric_paths.agree_with(own, process, connection, end, self._key, deadline)
            elif self._own.encrypts:
                path = tcp_paths.agree_with(own, process, connection, name, self._key, deadline)
        except (OSError, JaxcommError):
            return  # another attempt follows
        with self._lock:
            if self._end.is_set():
                connection.close()
                if isinstance(path, UdpPath):
                    path.close_sockets()
                return
            try:
                if isinstance(path, UdpPath):
                    self._core.restore_udp(process, rail, cuts, path)
                elif isinstance(path, FabricPath):
                    self._core.restore_fabric(process, rail, cuts, path)
                else:
                    keys = path.keys if path is not None else None
                    self._core.restore_tcp(process, rail, cuts, connection.detach(), keys)
            except JaxcommError:
                return  # the rail has changed in the meantime, or the trial has failed
            self._outages.end(RailTo(process, rail))


def _run_aside(attempt: Callable[[], None]) -> None:
    threading.Thread(target=attempt, name="jaxcomm repair", daemon=True).start()
