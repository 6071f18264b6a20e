"""A thread block of MSCCL++: its operations, and the barriers at which its threads wait for each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from jaxcomm.schedules import Op

CHANNELS_AT_ONCE: Final = 8  # at most this many channels per `signal` or `wait`, peers per `put`, or chunks per sum

Cell = tuple[str, int]  # a buffer ("i": input, "s": scratch), and the number of a chunk or place in the buffer
Item = TypeVar("Item")


class Slot(NamedTuple):
    """A chunk's place in scratch.

    If the block puts the chunk, the place is in the peer's scratch. If the peer puts the chunk, the place is in the
    block's own scratch.
    """

    peer: int
    chunk: int
    place: int


class ThreadBlock:
    """One thread block of one GPU. Operations name channels and remote buffers by index in `peers` and `buffers`."""

    def __init__(self, ranks: int) -> None:
        self.peers: list[int] = []  # each peer has one channel
        self.buffers: list[int] = []  # peers into whose scratch this block puts chunks
        self.arrived: set[int] = set()  # peers whose signal shows that they have entered this call
        self.announced: list[int] = []  # peers that wait for a signal of this block before they send
        self.signals = 0
        # The first `known[rank]` signals of that rank's block are known to precede this block's next operation.
        self.known = np.zeros(ranks, np.int32)
        self._ops: list[dict[str, Any]] = []
        self._waited = False  # whether a thread has waited since the last barrier of all threads
        self._read: set[Cell] = set()  # cells that were read since the last barrier
        self._written: set[Cell] = set()
        self._waits: list[dict[str, Any]] = []  # last `wait` operations; peers are added to them until the block sends
        self._after_waits = 0
        self._sums: dict[int, dict[str, Any]] = {}  # by chunk: the sum to which operands and a send can be added

    def operations(self) -> list[dict[str, Any]]:
        return [*(self._token("signal", some) for some in _by(CHANNELS_AT_ONCE, self.announced)), *self._ops]

    def await_arrival(self, peers: Sequence[int]) -> None:
        """Waits until the peers to which the block will send have announced themselves."""
        if peers:
            self.close()
            self._wait(peers)
            self.close()

    def put(self, chunk: int, slots: Iterable[Slot]) -> None:
        """Sends a chunk. If the chunk has an open sum, the operation that sums it also sends it."""
        self._waits = []
        for some in _by(CHANNELS_AT_ONCE, list(slots)):
            to = [{"buffer_id": place_of(self.buffers, s.peer), "index": s.place, "size": 1} for s in some]
            if chunk in self._sums:
                sum_ = self._sums.pop(chunk)
                sum_["name"], sum_["channel_type"] = "res", "memory"
                sum_["dst_buff"] += to
            else:
                own = [_local("i", chunk)] * len(some)
                self._data(
                    {"name": "put", "src_buff": own, "dst_buff": to, "channel_type": "memory"}, {("i", chunk)}, set()
                )

    def signal(self, peers: Sequence[int]) -> None:
        self.close()
        if self._read or self._written:
            self._meet()
        self._ops += [self._token("signal", some) for some in _by(CHANNELS_AT_ONCE, peers)]
        self.signals += 1

    def receive(self, messages: Sequence[tuple[Slot, Op]]) -> None:
        """Receives chunks that peers have put into the block's scratch; each peer signals once for all its chunks."""
        self._wait(sorted({slot.peer for slot, _ in messages}))
        for (_, chunk, at), op in messages:
            own, place = _local("i", chunk), _local("s", at)
            sum_ = self._sums.get(chunk)
            if op == Op.COPY:
                self._sums.pop(chunk, None)
                copy = {"name": "copy", "src_buff": [place], "dst_buff": [own]}
                self._data(copy, {("s", at)}, {("i", chunk)})
            elif sum_ and len(sum_["src_buff"]) <= CHANNELS_AT_ONCE:
                sum_["src_buff"].append(place)
                self._read.add(("s", at))
            else:
                sum_ = {"name": "re", "src_buff": [own, place], "dst_buff": [own], "reduce_op": "sum"}
                self._data(sum_, {("i", chunk), ("s", at)}, {("i", chunk)})
                self._sums[chunk] = sum_

    def close(self) -> None:
        """Closes the last waits and sums to additions; otherwise a precondition's sum could wait for late ranks."""
        self._waits = []
        self._sums = {}

    def _wait(self, peers: Iterable[int]) -> None:
        """Adds peers to the last waits, or starts new waits. Operations on a peer's data come after the wait for it."""
        if not self._waits:
            self._sums, self._after_waits, self._waited = {}, len(self._ops), True
        for peer in peers:
            channel = place_of(self.peers, peer)
            for wait in self._waits:
                if channel not in wait["channel_ids"] and len(wait["channel_ids"]) < CHANNELS_AT_ONCE:
                    wait["channel_ids"].append(channel)
                    break
            else:
                self._waits.append(self._token("wait", [peer]))
                self._ops.insert(self._after_waits, self._waits[-1])
                self._after_waits += 1
        self.arrived.update(peers)

    def _data(self, operation: dict[str, Any], read: set[Cell], written: set[Cell]) -> None:
        if self._waited or read & self._written or written & (self._read | self._written):
            self._meet()
        self._ops.append(operation)
        self._read |= read
        self._written |= written

    def _meet(self) -> None:
        self._ops.append({"name": "nop"})
        self._waited, self._read, self._written = False, set(), set()

    def _token(self, name: str, peers: Sequence[int]) -> dict[str, Any]:
        ids = [place_of(self.peers, peer) for peer in peers]
        return {"name": name, "channel_ids": ids, "channel_type": "memory"}


def place_of(items: list[int], item: int) -> int:
    """The index of `item` in `items`. A missing item is appended first."""
    if item not in items:
        items.append(item)
    return items.index(item)


def _local(type_: str, index: int) -> dict[str, Any]:
    return {"type": type_, "index": index, "size": 1}


def _by(size: int, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
