"""Export to MSCCL++: the JSON execution plan that its executor runs.

Follows MSCCL++ as of commit b62daa57 (execution_plan.cc, the parser, which knows neither version nor schema) with the
limits of commit 00668b4a (execution_common.hpp).

Thread block i of every GPU moves the same chunks, so that no two blocks of a GPU share data. A round's transfer
from one block to another is a `put` per chunk into the receiver's scratch buffer and one `signal`; the receiver does
`wait`, then `re` (reduce) or `copy`, and `res` where it sends the sum on at once. A GPU writes to another one's buffers
only after a signal of that one in this call, as that GPU may still be in its last call: a GPU that would be written to
before it sends anything sends a signal at its start. A place in scratch is written to again once the
signals that have reached the sender prove that it was read.

Only memory channels are used: all GPUs must reach each other's memory (NVLink or PCIe peers). Only scratch is written
to from outside: for other buffers the executor takes it that they begin at the same offset of their allocations on all
GPUs. A schedule gets a thread block per chunk up to 32 of them, and more only if its operations need more; with fewer
chunks, as many thread blocks share each (`tbg_info`) as make 32. There is no loop (`pipeline`): its iterations are as
many as a whole chunk needs, so that thread blocks that share a chunk would write beyond their parts.
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

OPERATIONS: Final = 64  # per thread block
CHANNELS: Final = 16  # per thread block
ALIGNMENT: Final = 16  # bytes
OFFSETS: Final = 2**32 - 1  # bytes: the executor holds offsets in 32 bits
SMALLEST: Final = 2**31 - 1  # bytes: it reads the smallest size into 32 bits with a sign

_IN_PARTS: Final = "export a range of smaller sizes (--size), and sum larger buffers in parts"


def mscclpp(schedule: Schedule, name: str, min_bytes: int, max_bytes: int | None) -> Exported:
    """An MSCCL++ execution plan for an in-place allreduce.

    Args:
      schedule: a schedule that the verifier has proved; late ranks are waited for where their data is needed.
      name: the plan's name, which must be its own: the executor keeps what it set up for a plan under it.
      min_bytes: smallest buffer.
      max_bytes: largest buffer; None means no limit but the executor's own.

    Returns:
      JSON. Its sizes are those of the range that are multiples of chunks × 16 bytes, the only ones that the executor
      takes, as far as its 32-bit offsets reach. The scratch buffer has a chunk for every one that may be there at once.

    Raises:
      PlanError: a limit of MSCCL++ that the schedule does not keep however its chunks are dealt out to thread blocks,
        or no size of the range that the executor takes.
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
    """The scratch buffer of one GPU; a place is reused for a chunk of the same block that surely finds it read."""

    def __init__(self) -> None:
        self.size = 0
        self._read: dict[int, list[tuple[int, int]]] = defaultdict(
            list
        )  # by block: place, signals sent when it was read

    def take(self, block: int, known: int) -> int:
        """A place for a chunk; the sender knows that `known` of the block's signals were sent."""
        for at, (place, signals) in enumerate(self._read[block]):
            if signals < known:
                del self._read[block][at]
                return place
        self.size += 1
        return self.size - 1

    def read(self, block: int, place: int, signals: int) -> None:
        self._read[block].append((place, signals))


class _Plan:
    """All thread blocks; block i of every GPU moves the chunks that are i modulo the number of blocks."""

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
        """Chunks in the largest buffer."""
        return max(self._chunks, *(scratch.size for scratch in self._scratch))

    def gpu(self, rank: int, instances: int) -> dict[str, Any]:
        """A GPU in which several thread blocks move a part of each chunk in place of one."""
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
        """A round's operations of the blocks of one index."""
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
    """An operation on a part of its chunks, which the executor finds itself."""
    if instances == 1 or "src_buff" not in operation:
        return operation
    return operation | {"tbg_info": {"tb_id": part, "tbg_size": instances}}
