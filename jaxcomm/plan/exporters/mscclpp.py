"""Export to MSCCL++: the JSON execution plan that its executor runs.

The format is that of MSCCL++ as of commit b62daa57, with the limits of commit 00668b4a (execution_common.hpp). The
parser, execution_plan.cc, checks neither version nor schema.

Thread block i of every GPU moves the same chunks, so no two blocks of a GPU share data. A round's transfer from one
block to another is a `put` per chunk into the receiver's scratch buffer and one `signal`. The receiver does `wait`,
then `re` (reduce) or `copy`, or `res` if it forwards the sum at once. A GPU writes to another GPU's buffers only after
the other GPU has signalled in this call, because until then the other GPU may still be in its previous call. A GPU that
receives before it sends anything therefore signals at its start. A place in scratch is reused once a signal has shown
the sender that the place was read.

Only memory channels are used: all GPUs must reach each other's memory (NVLink or PCIe peers). Other GPUs write only to
scratch, because the executor assumes that other buffers begin at the same offset of their allocations on all GPUs. A
schedule gets a thread block per chunk, up to 32, and more only if its operations need more. With fewer chunks, several
thread blocks share each chunk (`tbg_info`), so that there are up to 32 blocks in total. The export has no loop
(`pipeline`). A loop always iterates over a whole chunk, so thread blocks that share a chunk would write beyond their
parts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby, product
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.errors import PlanError
from jaxcomm.plan.exporters.chunk_rounds import (
    FEWER_CHUNKS,
    FEWER_RANKS,
    LANES,
    PART,
    THREAD_BLOCKS,
    Exported,
    Message,
    Round,
    check,
    fitting,
    split,
)
from jaxcomm.plan.exporters.mscclpp_blocks import Slot, ThreadBlock, place_of
from jaxcomm.schedules import Schedule

IntArray = NDArray[np.int32]

OPERATIONS: Final = 64  # maximum number of operations of a thread block
CHANNELS: Final = 16  # maximum number of channels of a thread block
ALIGNMENT: Final = 16  # bytes
OFFSETS: Final = 2**32 - 1  # bytes: the executor holds offsets in 32 bits
SMALLEST: Final = 2**31 - 1  # bytes: the executor reads the smallest size as a signed 32-bit number

_IN_PARTS: Final = "export a range of smaller sizes (--size), and sum larger buffers in parts"


def mscclpp(schedule: Schedule, name: str, min_bytes: int, max_bytes: int | None) -> Exported:
    """An MSCCL++ execution plan for an in-place allreduce.

    Args:
      schedule: a verified schedule. The plan waits for late ranks where their data is needed.
      name: the plan's name, which must be unique: the executor caches its setup of a plan by name.
      min_bytes: smallest buffer.
      max_bytes: largest buffer; None means that only the executor's own limit applies.

    Returns:
      JSON for those sizes in the range that the executor accepts: multiples of chunks × 16 bytes, as far as the
      executor's 32-bit offsets reach. The scratch buffer has room for all chunks that it may hold at once.

    Raises:
      PlanError: the schedule exceeds a limit of MSCCL++, however its chunks are divided over thread blocks, or the
        executor accepts no size in the range.
    """
    unit = schedule.num_chunks * ALIGNMENT
    low = max(-(-min_bytes // unit), 1) * unit
    allows = "MSCCL++ allows"
    check("the smallest size in bytes", low, SMALLEST, allows, _IN_PARTS)
    first, last = min(schedule.num_chunks, LANES), min(schedule.num_chunks, THREAD_BLOCKS)
    plan = fitting(schedule, lambda order: split(first, last, lambda blocks: _checked(_Plan(schedule, order, blocks))))
    check(
        "the largest offset in bytes at the smallest size",
        low // schedule.num_chunks * plan.places,
        OFFSETS,
        allows,
        _IN_PARTS,
    )
    reach = OFFSETS // (plan.places * ALIGNMENT) * unit
    high = reach if max_bytes is None else min(reach, max_bytes // unit * unit)
    if low > high:
        raise PlanError(
            f"no size from {min_bytes} to {max_bytes} bytes is a multiple of {schedule.num_chunks} chunks × "
            f"{ALIGNMENT} bytes = {unit}, as MSCCL++ needs.\n  Cure: export another byte range (--size)."
        )
    instances = max(min(LANES // plan.most_blocks, high // schedule.num_chunks // PART), 1)
    document = {
        "name": name,
        "collective": "allreduce",
        "protocol": "Simple",
        "inplace": True,
        "reuse_resources": False,
        "gpus": [plan.gpu(rank, instances) for rank in range(schedule.ranks)],
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": ALIGNMENT,
        "min_message_size": low,
        "max_message_size": high,
    }
    return Exported(json.dumps(document) + "\n", low, high)


def _checked(plan: _Plan) -> _Plan:
    allows = "MSCCL++ allows"
    check("the number of operations of a thread block", plan.most_operations, OPERATIONS, allows, FEWER_CHUNKS)
    check("the number of channels of a thread block", plan.most_peers, CHANNELS, allows, FEWER_RANKS)
    return plan


class _Scratch:
    """The scratch buffer of one GPU; a block reuses a place once the sender knows that the place was read."""

    def __init__(self) -> None:
        self.size = 0
        self._read: dict[int, list[tuple[int, int]]] = defaultdict(
            list
        )  # by block: the places that were read, each with the number of signals that the block had sent by then

    def take(self, block: int, known: int) -> int:
        """Assigns the block a place for a chunk, and returns the place.

        The first `known` signals of the block have reached the chunk's sender.
        """
        for at, (place, signals) in enumerate(self._read[block]):
            if signals < known:
                del self._read[block][at]
                return place
        self.size += 1
        return self.size - 1

    def read(self, block: int, place: int, signals: int) -> None:
        self._read[block].append((place, signals))


class _Plan:
    """All thread blocks. Block i of every GPU moves the chunks whose number modulo the number of blocks is i."""

    def __init__(self, schedule: Schedule, order: Sequence[Sequence[Round]], blocks: int) -> None:
        self._chunks = schedule.num_chunks
        self._blocks = [[ThreadBlock(schedule.ranks) for _ in range(schedule.ranks)] for _ in range(blocks)]
        self._scratch = [_Scratch() for _ in range(schedule.ranks)]
        for phase in order:
            for moved in phase:
                dealt: dict[int, list[Message]] = defaultdict(list)
                for message in moved:
                    dealt[message.chunk % blocks].append(message)
                for block, messages in dealt.items():
                    self._add(block, messages)
            for row in self._blocks:
                for block_ in row:
                    block_.close()

    @property
    def most_operations(self) -> int:
        return max(len(block.operations()) for row in self._blocks for block in row)

    @property
    def most_peers(self) -> int:
        return max(len(block.peers) for row in self._blocks for block in row)

    @property
    def most_blocks(self) -> int:
        return max(sum(1 for row in self._blocks if row[rank].peers) for rank in range(len(self._scratch)))

    @property
    def places(self) -> int:
        """The size of the largest buffer of all GPUs, in chunks."""
        return max(self._chunks, *(scratch.size for scratch in self._scratch))

    def gpu(self, rank: int, instances: int) -> dict[str, Any]:
        """The JSON of a GPU. Each thread block becomes `instances` blocks, each of which moves part of every chunk."""
        blocks = [row[rank] for row in self._blocks if row[rank].peers]
        written = sorted({peer for block in blocks for peer in block.buffers})
        threadblocks: list[dict[str, Any]] = []
        connected: list[int] = []
        for block, part in product(blocks, range(instances)):
            ids = list(range(len(connected), len(connected) + len(block.peers)))
            connected += block.peers
            buffers = [written.index(peer) for peer in block.buffers]
            access = {"access_channel_type": "memory", "remote_buffer_ids": buffers}
            threadblocks.append(
                {
                    "id": len(threadblocks),
                    "ops": [_part(op, part, instances) for op in block.operations()],
                    "channels": [{"channel_type": "memory", "channel_ids": ids}],
                    "remote_buffer_refs": [access] if buffers else [],
                }
            )
        return {
            "id": rank,
            "input_chunks": self._chunks,
            "output_chunks": self._chunks,
            "scratch_chunks": self._scratch[rank].size,
            "threadblocks": threadblocks,
            "channels": [{"channel_type": "memory", "connected_to": connected}],
            "remote_buffers": [{"rank": peer, "type": "s", "access_channel_types": ["memory"]} for peer in written],
            "semaphores": [],
        }

    def _add(self, index: int, messages: Sequence[Message]) -> None:
        """Adds the operations for a round's messages to the thread blocks with the index `index`."""
        row = self._blocks[index]
        place: dict[Message, int] = {}
        known: dict[int, IntArray] = {}
        for src, group in groupby(sorted(messages), key=attrgetter("src")):
            sent, block = list(group), row[src]
            peers = sorted({message.dst for message in sent})
            strangers = [peer for peer in peers if peer not in block.arrived]
            for peer in strangers:
                row[peer].announced.append(src)
                place_of(row[peer].peers, src)
            block.await_arrival(strangers)
            for chunk, to in groupby(sorted(sent, key=attrgetter("chunk", "dst")), key=attrgetter("chunk")):
                slots = []
                for message in to:
                    place[message] = self._scratch[message.dst].take(index, int(block.known[message.dst]))
                    slots.append(Slot(message.dst, chunk, place[message]))
                block.put(chunk, slots)
            block.signal(peers)
            block.known[src] = block.signals
            known[src] = block.known.copy()
        for dst, group in groupby(sorted(messages, key=attrgetter("dst", "chunk", "src")), key=attrgetter("dst")):
            received, block = list(group), row[dst]
            block.receive([(Slot(message.src, message.chunk, place[message]), message.op) for message in received])
            for message in received:
                np.maximum(block.known, known[message.src], out=block.known)
                self._scratch[dst].read(index, place[message], block.signals)


def _part(operation: dict[str, Any], part: int, instances: int) -> dict[str, Any]:
    """An operation on one part of its chunks; the executor computes the part's bounds."""
    if instances == 1 or "src_buff" not in operation:
        return operation
    return operation | {"tbg_info": {"tb_id": part, "tbg_size": instances}}
