"""Counts the evenly paced UDP packets that get lost between hosts while there is no other traffic."""

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

from jaxcomm.distributed.connect.addresses import bound_socket, make_room
from jaxcomm.distributed.connect.udp_paths import full_packet_bytes
from jaxcomm.distributed.rails.rail_ends import RailEnd

if TYPE_CHECKING:
    from jaxcomm.distributed.connect.membership import Membership

_SECONDS: Final = 5.0
_SHARE: Final = 0.1  # share of the slowest link's rate that the packets use
_MOST_RATE: Final = 2000.0  # at most this many packets per second: Python cannot pace more packets evenly
_LEAST_LOST: Final = 10  # a path's lost packets count if there are at least this many; fewer may be chance
_MOST_BYTES: Final = 1400  # maximum number of bytes of a packet
_HEADER: Final = struct.Struct("<16sI")  # the receiver's token, the packet's number
_BURST: Final = 4  # at most this many packets are sent back to back
_ROOM: Final = 4 << 20
_LATE_S: Final = 0.5  # seconds to wait for packets in flight after the last packet was sent
_SO_RXQ_OVFL: Final = 40  # the socket option's number in Linux's headers


class LostPackets(NamedTuple):
    """The number of packets that one host sent to another host, and the number of these packets that got lost.

    Attributes:
      sender: name of the sending host.
      receiver: name of the receiving host.
      sent: number of packets sent.
      lost: number of packets lost.
    """

    sender: str
    receiver: str
    sent: int
    lost: int

    @property
    def rate(self) -> float:
        """The share of packets that were lost; 0 if fewer than 10 were lost, because that may be chance."""
        return self.lost / self.sent if self.lost >= _LEAST_LOST else 0.0


def measure(hosts: Mapping[int, str], bytes_per_s: float, measurement: int) -> list[LostPackets]:
    """Counts the packets lost between each host and the next. All processes of the job call this and get equal results.

    All hosts send at once, for five seconds, at a tenth of the slowest link's rate and at most 2 000 packets per
    second. The count includes packets that an otherwise idle network loses, and packets that the sending host does not
    transmit. It excludes packets for which the receiver's socket has no room.

    Args:
      hosts: maps one process of each host to the host's name; at least two hosts.
      bytes_per_s: rate of the slowest link.
      measurement: a number that all processes give to this measurement only.

    Returns:
      One item for each host and the next host, if a single rail connects these two hosts.

    Raises:
      JaxcommError: a process does not reply in time, or lacks the permission to bind a socket to its interface.
    """
    from jaxcomm.distributed import store
    from jaxcomm.distributed.connect import members

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
    """The only rail to a process; None if there are several rails."""
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
    """Sends packets; returns their number, including packets that this host did not transmit."""
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
            # Skips packets that were due while this process did not run, because a burst of them would overflow queues.
            due = max(due, time.monotonic() - _BURST * pause) + pause
    return number


class _Counter:
    """Counts the packets that arrive at a socket, in a separate thread. Packets with the same number count once."""

    def __init__(self, receiver: socket.socket) -> None:
        """Starts the thread. A packet counts if it carries the token in `end`."""
        self._receiver, self._token = receiver, secrets.token_bytes(16)
        self.end = [*receiver.getsockname()[:2], self._token.hex()]  # address, port, token
        self._numbers: set[int] = set()
        self._overflown = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Returns the number of packets that arrived, including packets for which the socket had no room."""
        self._ends.set()
        self._thread.join()
        return len(self._numbers) + self._overflown

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                packet, others, _, _ = self._receiver.recvmsg(2 * _MOST_BYTES, socket.CMSG_SPACE(4))
            except TimeoutError:
                continue
            except OSError:  # the socket was closed after an error
                return
            for level, kind, data in others:
                if (level, kind) == (socket.SOL_SOCKET, _SO_RXQ_OVFL):
                    (self._overflown,) = struct.unpack("=I", data[:4])
            if len(packet) >= _HEADER.size and packet.startswith(self._token):
                self._numbers.add(_HEADER.unpack_from(packet)[1])
