"""Export to MSCCL++: the JSON execution plan that its executor runs.

Follows MSCCL++ as of commit b62daa57 (execution_plan.cc, the parser, which knows neither version nor schema) with the
limits of commit 00668b4a (execution_common.hpp).

Thread block i of every GPU moves the same chunks, so that no two blocks of a GPU share data. A message is a `put` into
a place of its own in the receiver's scratch buffer and a `signal`; the receiver does `wait`, then `re` (reduce) or
`copy`. Nobody writes to another GPU's buffers before that one has sent it a signal in this call, as that GPU may still
be in its last call: whoever would be written to before it sends anything announces itself with a signal at its start.

Only memory channels are used: all GPUs must reach each other's memory (NVLink or PCIe peers). A schedule gets a
thread block per chunk up to 32 of them, and more only if its operations need more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from jaxcomm.errors import PlanError
from jaxcomm.plan.exporters.chunk_rounds import THREAD_BLOCKS, ChunkRound, Exported, check, fitting, split
from jaxcomm.schedules import Op, Schedule

LANES: Final = 32  # thread blocks of a schedule that has the chunks: as many as NCCL has channels
OPERATIONS: Final = 64  # per thread block
CHANNELS: Final = 16  # per thread block
CHANNELS_AT_ONCE: Final = 8  # per operation
ALIGNMENT: Final = 16  # bytes
OFFSETS: Final = 2**32 - 1  # bytes: the executor holds offsets in 32 bits
SMALLEST: Final = 2**31 - 1  # bytes: it reads the smallest size into 32 bits with a sign

_FEWER_CHUNKS: Final = "plan with fewer chunks, or export another byte range (--bytes)"
_FEWER_RANKS: Final = "use a schedule with fewer peers per rank, such as a ring, or fewer ranks"


def mscclpp(schedule: Schedule, name: str, min_bytes: int, max_bytes: int | None) -> Exported:
    """An MSCCL++ execution plan for an in-place allreduce.

    Args:
      schedule: a schedule that the verifier has proved; late ranks are waited for where their data is needed.
      name: the plan's name, which must be its own: the executor keeps what it set up for a plan under it.
      min_bytes: smallest buffer.
      max_bytes: largest buffer; None means no limit but the executor's own.

    Returns:
      JSON. Its sizes are those of the range that are multiples of chunks × 16 bytes, the only ones that the executor
      takes, as far as its 32-bit offsets reach. The scratch buffer has a chunk per message that a GPU receives.

    Raises:
      PlanError: a limit of MSCCL++ that the schedule does not keep however its chunks are dealt out to thread blocks,
        or no size of the range that the executor takes.
    """
    first, last = min(schedule.num_chunks, LANES), min(schedule.num_chunks, THREAD_BLOCKS)
    plan = fitting(
        schedule, lambda order: split(first, last, lambda channels: _checked(_Plan(schedule, order, channels)))
    )
    low, high = _sizes(schedule.num_chunks, max(*plan.slots, schedule.num_chunks), min_bytes, max_bytes)
    document = {
        "name": name,
        "collective": "allreduce",
        "protocol": "Simple",
        "inplace": True,
        "reuse_resources": False,
        "gpus": [plan.gpu(rank) for rank in range(schedule.ranks)],
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": ALIGNMENT,
        "min_message_size": low,
        "max_message_size": high,
    }
    return Exported(json.dumps(document) + "\n", low, high)


def _checked(plan: _Plan) -> _Plan:
    allows = "MSCCL++ allows"
    check("the number of operations of a thread block", plan.most_operations, OPERATIONS, allows, _FEWER_CHUNKS)
    check("the number of channels of a thread block", plan.most_peers, CHANNELS, allows, _FEWER_RANKS)
    return plan


def _sizes(chunks: int, places: int, min_bytes: int, max_bytes: int | None) -> tuple[int, int]:
    """The smallest and the largest size that the executor takes; `places` is the largest buffer, in chunks."""
    unit = chunks * ALIGNMENT
    low = max(-(-min_bytes // unit), 1) * unit
    reach = OFFSETS // (places * ALIGNMENT) * unit
    high = reach if max_bytes is None else min(reach, max_bytes // unit * unit)
    if low > high or low > SMALLEST:
        end = "no limit" if max_bytes is None else max_bytes
        raise PlanError(
            f"no size from {min_bytes} to {end} bytes is one that MSCCL++ takes: a multiple of {chunks} chunks × "
            f"{ALIGNMENT} bytes = {unit}, from {unit} to {reach} bytes, and a smallest one of at most {SMALLEST}.\n"
            "  Cure: export another byte range (--bytes), or plan with fewer chunks."
        )
    return low, high


class _Block:
    """One thread block of one GPU; it names channels and remote buffers by their place in its own lists."""

    def __init__(self) -> None:
        self.peers: list[int] = []  # one channel each
        self.written: list[int] = []  # peers whose scratch it puts into
        self.arrived: set[int] = set()  # peers that are known to be in this call
        self.announced: list[int] = []  # peers that wait for a signal of this block before they send
        self._ops: list[dict[str, Any]] = []
        self._loose: set[str] = set()  # kinds of operations that some threads may not have finished
        self._sum: tuple[dict[str, Any], dict[str, Any]] | None = None  # the `wait` and `re` that more can join

    def operations(self) -> list[dict[str, Any]]:
        return [*self._token("signal", self.announced), *self._ops]

    def wait(self, peers: Sequence[int]) -> None:
        self._sum = None
        self.arrived.update(peers)
        self._ops += self._token("wait", peers)
        if peers:
            self._loose.add("wait")

    def signal(self, peers: Sequence[int]) -> None:
        self._sum = None
        if "data" in self._loose:
            self._synchronise()
        self._ops += self._token("signal", peers)

    def data(self, name: str, src: list[dict[str, Any]], dst: list[dict[str, Any]], **more: str) -> None:
        self._sum = None
        if self._loose:
            self._synchronise()
        self._ops.append({"name": name, "src_buff": src, "dst_buff": dst, **more})
        self._loose.add("data")

    def reduce(self, peer: int, place: dict[str, Any], own: dict[str, Any]) -> None:
        """Adds what a peer puts into a place to an own chunk, in one operation with what was added just before."""
        if self._sum:
            wait, sum_ = self._sum
            ids, channel = wait["channel_ids"], _place(self.peers, peer)
            if sum_["dst_buff"] == [own] and channel not in ids and len(ids) < CHANNELS_AT_ONCE:
                ids.append(channel)
                sum_["src_buff"].append(place)
                self.arrived.add(peer)
                return
        self.wait([peer])
        wait = self._ops[-1]
        self.data("re", [own, place], [own], reduce_op="sum")
        self._sum = wait, self._ops[-1]

    def close(self) -> None:
        """Ends the sum that more can join: a sum of a precondition must not wait for the late ranks."""
        self._sum = None

    def remote(self, peer: int, slot: int) -> dict[str, Any]:
        return {"buffer_id": _place(self.written, peer), "index": slot, "size": 1}

    def _synchronise(self) -> None:
        self._ops.append({"name": "nop"})
        self._loose.clear()

    def _token(self, name: str, peers: Sequence[int]) -> Iterator[dict[str, Any]]:
        for some in _by(CHANNELS_AT_ONCE, peers):
            ids = [_place(self.peers, peer) for peer in some]
            yield {"name": name, "channel_ids": ids, "channel_type": "memory"}


class _Plan:
    """All thread blocks; channel i is the i-th of every GPU, and moves the chunks that are i modulo their number."""

    def __init__(self, schedule: Schedule, order: Sequence[Sequence[ChunkRound]], channels: int) -> None:
        self._chunks = schedule.num_chunks
        self._channels = [[_Block() for _ in range(schedule.ranks)] for _ in range(channels)]
        self.slots = [0] * schedule.ranks  # places in the scratch buffer
        for phase in order:
            for moved in phase:
                self._add(moved)
            for channel in self._channels:
                for block in channel:
                    block.close()

    @property
    def most_operations(self) -> int:
        return max(len(block.operations()) for channel in self._channels for block in channel)

    @property
    def most_peers(self) -> int:
        return max(len(block.peers) for channel in self._channels for block in channel)

    def gpu(self, rank: int) -> dict[str, Any]:
        blocks = [channel[rank] for channel in self._channels if channel[rank].peers]
        written = sorted({peer for block in blocks for peer in block.written})
        threadblocks: list[dict[str, Any]] = []
        connected: list[int] = []
        for index, block in enumerate(blocks):
            ids = list(range(len(connected), len(connected) + len(block.peers)))
            connected += block.peers
            buffers = [written.index(peer) for peer in block.written]
            access = {"access_channel_type": "memory", "remote_buffer_ids": buffers}
            threadblocks.append(
                {
                    "id": index,
                    "ops": block.operations(),
                    "channels": [{"channel_type": "memory", "channel_ids": ids}],
                    "remote_buffer_refs": [access] if buffers else [],
                }
            )
        return {
            "id": rank,
            "input_chunks": self._chunks,
            "output_chunks": self._chunks,
            "scratch_chunks": self.slots[rank],
            "threadblocks": threadblocks,
            "channels": [{"channel_type": "memory", "connected_to": connected}],
            "remote_buffers": [{"rank": peer, "type": "s", "access_channel_types": ["memory"]} for peer in written],
            "semaphores": [],
        }

    def _add(self, moved: ChunkRound) -> None:
        blocks = self._channels[moved.chunk % len(self._channels)]
        slot = {}
        for message in moved.messages:
            slot[message] = self.slots[message.dst]
            self.slots[message.dst] += 1
        own = {"type": "i", "index": moved.chunk, "size": 1}
        for src, group in groupby(sorted(moved.messages), key=lambda message: message.src):
            messages = list(group)
            block = blocks[src]
            strangers = [message.dst for message in messages if message.dst not in block.arrived]
            for peer in strangers:
                blocks[peer].announced.append(src)
                _place(blocks[peer].peers, src)
            block.wait(strangers)
            for some in _by(CHANNELS_AT_ONCE, messages):
                to = [block.remote(message.dst, slot[message]) for message in some]
                block.data("put", [own] * len(some), to, channel_type="memory")
                block.signal([message.dst for message in some])
        for message in moved.messages:
            place = {"type": "s", "index": slot[message], "size": 1}
            if message.op == Op.REDUCE:
                blocks[message.dst].reduce(message.src, place, own)
            else:
                blocks[message.dst].wait([message.src])
                blocks[message.dst].data("copy", [place], [own])


def _place(items: list[int], item: int) -> int:
    """Where an item stands in a list, at whose end it is put if it is not there."""
    if item not in items:
        items.append(item)
    return items.index(item)


def _by(size: int, items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
