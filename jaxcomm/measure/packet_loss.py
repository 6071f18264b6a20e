"""How many packets get lost between hosts that have nothing else to say: UDP packets, evenly paced."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from jaxcomm.distributed.addresses import bound_socket
from jaxcomm.distributed.rails import RailEnd

SECONDS: Final = 5.0

_SHARE: Final = 0.1  # of what a link carries
_MOST_RATE: Final = 2000.0  # packets a second: Python paces no more of them evenly
_PACKET_BYTES: Final = 1400
_HEADER: Final = struct.Struct("<16sI")  # the receiver's token, the packet's number
_ROOM: Final = 4 << 20
_LATE_S: Final = 0.5  # for packets that are on their way when the last one has been sent
_SO_RCVBUFFORCE, _SO_RXQ_OVFL = 33, 40  # of the kernel's headers


class Lost(NamedTuple):
    """What came of the packets from one host to another.

    Attributes:
      sender: name of the one.
      receiver: of the other.
      sent: packets.
      lost: how many of them.
    """

    sender: str
    receiver: str
    sent: int
    lost: int

    @property
    def rate(self) -> float:
        """The share that was lost."""
        return self.lost / self.sent


def measure(hosts: Mapping[int, str], bytes_per_s: float, measurement: int) -> list[Lost]:
    """What is lost from each host to the next one. All processes of the job call it, and get the same.

    All hosts send at once, for five seconds, a tenth of what a link carries: no queue overflows, and what is counted
    is what the network loses by itself. What a receiver's own socket has no room for counts as received.

    Args:
      hosts: the name of each, at least of two, by one of its processes.
      bytes_per_s: that a link carries.
      measurement: its number, alike in all processes, and no other one's.

    Returns:
      One entry for each host, but for two that several rails connect, of which each may lose another share.

    Raises:
      JaxcommError: a process does not come so far, or may not bind its interface.
    """
    from jaxcomm.distributed import members, store

    own, place, processes = members.connected(), f"packet_loss/{measurement}", sorted(hosts)
    if own.process in processes:
        at = processes.index(own.process)
        before, after = processes[at - 1], processes[(at + 1) % len(processes)]
        found = None
        with _receiving(own.ends[0]) as receiver:
            token = secrets.token_bytes(16)
            counter = _Counter(receiver, token)
            store.publish(f"{place}/end/{own.process}", json.dumps([*receiver.getsockname()[:2], token.hex()]))
            address, port, theirs = json.loads(_lookup(place, "end", after))
            sent = 0
            if len(own.shares[after][0].shares) == 1:
                sent = _send(own.ends[0], (address, port), bytes.fromhex(theirs), bytes_per_s)
            store.publish(f"{place}/sent/{own.process}", str(sent))
            sent = int(_lookup(place, "sent", before))
            time.sleep(_LATE_S)
            came = counter.stop()
            if sent:
                found = Lost(hosts[before], hosts[own.process], sent, max(0, sent - came))
        store.publish(f"{place}/found/{own.process}", json.dumps(found))
    return [Lost(*each) for process in processes if (each := json.loads(_lookup(place, "found", process)))]


def _lookup(place: str, what: str, process: int) -> str:
    from jaxcomm.distributed import store

    return store.lookup(f"{place}/{what}/{process}", f"process {process} has not measured the loss of packets")


def _receiving(end: RailEnd) -> socket.socket:
    made = bound_socket(end.address, end.interface, socket.SOCK_DGRAM)
    made.bind((end.address, 0))
    for option in (_SO_RCVBUFFORCE, socket.SO_RCVBUF):
        with contextlib.suppress(PermissionError):
            made.setsockopt(socket.SOL_SOCKET, option, _ROOM)
            break
    with contextlib.suppress(OSError):
        made.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
    made.settimeout(0.1)
    return made


def _send(end: RailEnd, address: tuple[str, int], token: bytes, bytes_per_s: float) -> int:
    """How many packets have been sent there; what this host itself does not let out counts, too."""
    pause = 1 / min(_MOST_RATE, _SHARE * bytes_per_s / _PACKET_BYTES)
    count = max(1, round(SECONDS / pause))
    rest = bytes(_PACKET_BYTES - _HEADER.size)
    with bound_socket(end.address, end.interface, socket.SOCK_DGRAM) as sender:
        start = time.monotonic()
        for number in range(count):
            if (wait := start + number * pause - time.monotonic()) > 0:
                time.sleep(wait)
            with contextlib.suppress(OSError):
                sender.sendto(_HEADER.pack(token, number) + rest, address)
    return count


class _Counter:
    """Counts the packets that come to a socket, each number once, in a thread of its own."""

    def __init__(self, receiver: socket.socket, token: bytes) -> None:
        self._receiver, self._token = receiver, token
        self._numbers: set[int] = set()
        self._overflown = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """How many have come, with those that the socket had no room for."""
        self._ends.set()
        self._thread.join()
        return len(self._numbers) + self._overflown

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                packet, others, _, _ = self._receiver.recvmsg(_PACKET_BYTES + 1, socket.CMSG_SPACE(4))
            except TimeoutError:
                continue
            except OSError:  # it has been closed after an error
                return
            for level, kind, data in others:
                if (level, kind) == (socket.SOL_SOCKET, _SO_RXQ_OVFL):
                    (self._overflown,) = struct.unpack("=I", data[:4])
            if len(packet) == _PACKET_BYTES and packet.startswith(self._token):
                self._numbers.add(_HEADER.unpack_from(packet)[1])
