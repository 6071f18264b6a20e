"""A thread block of MSCCL++: its operations, and where they must wait for the block's other threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from jaxcomm.schedules import Op

CHANNELS_AT_ONCE: Final = 8  # per operation: of `signal` and `wait`, peers of a `put`, chunks that a sum adds

Cell = tuple[str, int]  # buffer, chunk or place
Item = TypeVar("Item")


class Slot(NamedTuple):
    """A chunk's place in the scratch buffer of a peer that a block puts into, or in its own where a peer has put."""

    peer: int
    chunk: int
    place: int


class ThreadBlock:
    """One thread block of one GPU; it names channels and remote buffers by their place in its own lists."""

    def __init__(self, ranks: int) -> None:
        self.peers: list[int] = []  # one channel each
        self.buffers: list[int] = []  # peers whose scratch it puts into
        self.arrived: set[int] = set()  # peers that are known to be in this call
        self.announced: list[int] = []  # peers that wait for a signal of this block before they send
        self.signals = 0
        self.known = np.zeros(ranks, np.int32)  # by rank, the signals of its block that came before the next operation
        self._ops: list[dict[str, Any]] = []
        self._waited = False  # since all threads met, some have waited
        self._read: set[Cell] = set()  # since then
        self._written: set[Cell] = set()
        self._waits: list[dict[str, Any]] = []  # the last `wait`s, which more peers can join until the block sends
        self._after_waits = 0
        self._sums: dict[int, dict[str, Any]] = {}  # by chunk: those that can add more, and send what they add up to

    def operations(self) -> list[dict[str, Any]]:
        return [*(self._token("signal", some) for some in _by(CHANNELS_AT_ONCE, self.announced)), *self._ops]

    def await_arrival(self, peers: Sequence[int]) -> None:
        """Waits until peers to which it will send have announced themselves."""
        if peers:
            self.close()
            self._wait(peers)
            self.close()

    def put(self, chunk: int, slots: Iterable[Slot]) -> None:
        """Sends a chunk; a sum that has just been made is sent by the operation that makes it."""
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
        """Takes in what peers have put into the block's own scratch, each with one signal for all that it has sent."""
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
        """Ends what more can join: a sum of a precondition must not wait for the late ranks."""
        self._waits = []
        self._sums = {}

    def _wait(self, peers: Iterable[int]) -> None:
        """Adds peers to the last waits, before the data operations that follow those, or waits anew."""
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
    """Where an item stands in a list, at whose end it is put if it is not there."""
    if item not in items:
        items.append(item)
    return items.index(item)


def _local(type_: str, index: int) -> dict[str, Any]:
    return {"type": type_, "index": index, "size": 1}


def _by(size: int, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
