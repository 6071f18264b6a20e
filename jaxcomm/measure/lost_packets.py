"""Counts the packets that get lost between hosts without other traffic: UDP packets, evenly paced."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from jaxcomm.distributed.addresses import bound_socket, make_room
from jaxcomm.distributed.rails import RailEnd
from jaxcomm.distributed.udp_paths import full_packet_bytes

if TYPE_CHECKING:
    from jaxcomm.distributed.membership import Membership

_SECONDS: Final = 5.0
_SHARE: Final = 0.1  # of what the slowest link carries
_MOST_RATE: Final = 2000.0  # packets a second: Python paces no more of them evenly
_LEAST_LOST: Final = 10  # of one way; fewer may be chance
_MOST_BYTES: Final = 1400  # of a packet
_HEADER: Final = struct.Struct("<16sI")  # the receiver's token, the packet's number
_BURST: Final = 4  # packets that may follow each other at once
_ROOM: Final = 4 << 20
_LATE_S: Final = 0.5  # for packets that are on their way when the last one has been sent
_SO_RXQ_OVFL: Final = 40  # of the kernel's headers


class LostPackets(NamedTuple):
    """The packets from one host to another: sent and received.

    Attributes:
      sender: name of the one.
      receiver: of the other.
      sent: packets.
      lost: the number of those that were lost.
    """

    sender: str
    receiver: str
    sent: int
    lost: int

    @property
    def rate(self) -> float:
        """The share that was lost; none, if so few were that it may be chance."""
        return self.lost / self.sent if self.lost >= _LEAST_LOST else 0.0


def measure(hosts: Mapping[int, str], bytes_per_s: float, measurement: int) -> list[LostPackets]:
    """The packets lost from each host to the next one. All processes of the job call it, and get the same.

    All hosts send at once, for five seconds: a tenth of what the slowest link carries, 2 000 packets a second at most.
    So the count has the packets that an otherwise idle network loses, and those that the sending host does not let
    out. Packets that find no room in the receiver's socket are not counted.

    Args:
      hosts: the name of each, at least of two, by one of its processes.
      bytes_per_s: that the slowest link carries.
      measurement: its number, alike in all processes, and no other one's.

    Returns:
      One for each way, except between hosts that several rails connect.

    Raises:
      JaxcommError: a process does not come so far, or may not bind its interface.
    """
    from jaxcomm.distributed import members, store

    own, place, processes = members.connected(), f"lost_packets/{measurement}", sorted(hosts)
    if own.process in processes:
        at = processes.index(own.process)
        before, after = processes[at - 1], processes[(at + 1) % len(processes)]
        found, sent = None, 0
        with contextlib.ExitStack() as stack:
            counter = None
            if rail := _only_rail(own, before):
                counter = _Counter(stack.enter_context(_receiver(rail)))
            store.publish(f"{place}/end/{own.process}", json.dumps(counter and counter.end))
            theirs = json.loads(_lookup(place, "end", after))
            if (rail := _only_rail(own, after)) and theirs:
                address, port, token = theirs
                sent = _send(rail, (address, port), bytes.fromhex(token), bytes_per_s)
            store.publish(f"{place}/sent/{own.process}", str(sent))
            if counter and (sent := int(_lookup(place, "sent", before))):
                time.sleep(_LATE_S)
                found = LostPackets(hosts[before], hosts[own.process], sent, max(0, sent - counter.stop()))
        store.publish(f"{place}/found/{own.process}", json.dumps(found))
    return [LostPackets(*each) for process in processes if (each := json.loads(_lookup(place, "found", process)))]


def _only_rail(own: Membership, process: int) -> RailEnd | None:
    """The rail to a process; none, if there are several."""
    names = own.shares[process][0].shares
    return next(end for end in own.ends if end.name in names) if len(names) == 1 else None


def _lookup(place: str, subject: str, process: int) -> str:
    from jaxcomm.distributed import store

    return store.lookup(f"{place}/{subject}/{process}", f"process {process} has not counted lost packets", process)


def _receiver(rail: RailEnd) -> socket.socket:
    made = bound_socket(rail.address, rail.interface, socket.SOCK_DGRAM)
    made.bind((rail.address, 0))
    make_room(made, _ROOM)
    with contextlib.suppress(OSError):
        made.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
    made.settimeout(0.1)
    return made


def _send(rail: RailEnd, address: tuple[str, int], token: bytes, bytes_per_s: float) -> int:
    """The packets sent there, with those that this host itself does not let out."""
    with bound_socket(rail.address, rail.interface, socket.SOCK_DGRAM) as sender:
        sender.connect(address)
        size = min(_MOST_BYTES, full_packet_bytes(sender))
        pause = 1 / min(_MOST_RATE, _SHARE * bytes_per_s / size)
        rest = bytes(size - _HEADER.size)
        number, due = 0, time.monotonic()
        end = due + _SECONDS
        while due < end:
            if (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            with contextlib.suppress(OSError):
                sender.send(_HEADER.pack(token, number) + rest)
            number += 1
            # Packets due while this process did not run are left out: at once they would overflow queues.
            due = max(due, time.monotonic() - _BURST * pause) + pause
    return number


class _Counter:
    """Counts the packets that come to a socket, each number once, in a thread of its own."""

    def __init__(self, receiver: socket.socket) -> None:
        """Starts; a packet counts if it bears the token of `end`."""
        self._receiver, self._token = receiver, secrets.token_bytes(16)
        self.end = [*receiver.getsockname()[:2], self._token.hex()]  # address, port, token
        self._numbers: set[int] = set()
        self._overflown = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """The packets that came, with those that the socket had no room for."""
        self._ends.set()
        self._thread.join()
        return len(self._numbers) + self._overflown

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                packet, others, _, _ = self._receiver.recvmsg(2 * _MOST_BYTES, socket.CMSG_SPACE(4))
            except TimeoutError:
                continue
            except OSError:  # it has been closed after an error
                return
            for level, kind, data in others:
                if (level, kind) == (socket.SOL_SOCKET, _SO_RXQ_OVFL):
                    (self._overflown,) = struct.unpack("=I", data[:4])
            if len(packet) >= _HEADER.size and packet.startswith(self._token):
                self._numbers.add(_HEADER.unpack_from(packet)[1])
