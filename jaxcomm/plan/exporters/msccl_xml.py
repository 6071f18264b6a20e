"""Export to MSCCL: the XML algorithm that msccl-executor-nccl runs.

The format is that of msccl-executor-nccl as of commit 3b40a2a8 (msccl_parser.cc, msccl_kernel.cu), with the limits of
commit 206e0c49 (msccl_struct.h: 64 steps; some forks allow more). The attributes are the ones that msccl-tools writes
(ir.py as of commit 0448b1d8, `old_format`).

A thread block either sends to one peer or receives from one peer, over one channel. It does both only if a GPU would
otherwise have too many thread blocks. The number of a link's channels depends on the number of its steps. Steps are `s`
(send), `r` (receive) and `rrc` (receive and add) of one or several consecutive chunks. If steps in different blocks of
a GPU touch the same chunk, `depid` and `deps` order these steps. A step can have one such dependency; each further
dependency needs a `nop` step. If unused thread blocks and channels remain, the buffer is cut into parts, called
instances. Each instance runs the same steps over channels of its own.
"""

from __future__ import annotations

from typing import Final

from jaxcomm.errors import PlanError
from jaxcomm.plan.exporters.chunk_rounds import (
    FEWER_CHUNKS,
    FEWER_RANKS,
    LANES,
    PART,
    THREAD_BLOCKS,
    Exported,
    Round,
    TooMuchError,
    check,
    fitting,
    split,
)
from jaxcomm.plan.exporters.msccl_blocks import Gpu, XmlStep, gpus, together
from jaxcomm.schedules import Schedule

STEPS: Final = 64  # maximum number of steps of a thread block, `nop` included
CHANNELS: Final = 32
NODES: Final = 4096  # maximum number of XML elements that the parser keeps for one GPU
CHUNKS: Final = 2**15 - 1  # maximum number of chunks, because offsets are held in 16 bits


def msccl_xml(schedule: Schedule, name: str, min_bytes: int, max_bytes: int | None) -> Exported:
    """An MSCCL algorithm for an in-place allreduce, protocol Simple.

    Args:
      schedule: a verified schedule. The algorithm waits for late ranks where their data is needed.
      name: the algorithm's name.
      min_bytes: smallest buffer.
      max_bytes: largest buffer; None means no limit.

    Returns:
      XML. MSCCL runs it for buffers whose number of elements is a multiple of the number of chunks of all instances.

    Raises:
      PlanError: the schedule exceeds a limit of MSCCL, however its chunks are divided over channels.
    """
    if max_bytes == 0:
        raise PlanError("the byte range ends at 0, which MSCCL reads as no limit.\n  Cure: export another byte range.")
    chunks = schedule.num_chunks
    check("the number of chunks", chunks, CHUNKS, "MSCCL allows", FEWER_CHUNKS)

    def build(order: list[list[Round]]) -> list[Gpu]:
        moves = [group for phase in order for round_ in phase for group in together(round_)]

        def dealt(both: bool) -> list[Gpu]:
            return split(1, CHANNELS, lambda most: _checked(gpus(schedule.ranks, moves, most, both)))

        try:
            return dealt(both=False)
        except TooMuchError:
            return dealt(both=True)

    made = fitting(schedule, build)
    channels = 1 + max(block.channel for gpu in made for block in gpu.blocks)
    instances = _instances(made, channels, chunks, max_bytes)
    lines = [
        f'<algo name="{name}" proto="Simple" nchannels="{channels * instances}" nchunksperloop="{chunks * instances}" '
        f'ngpus="{schedule.ranks}" coll="allreduce" inplace="1" outofplace="0" minBytes="{min_bytes}" '
        f'maxBytes="{max_bytes or 0}">'
    ]
    for rank, gpu in enumerate(made):
        lines.append(
            f'  <gpu id="{rank}" i_chunks="{chunks * instances}" o_chunks="{chunks * instances}" s_chunks="0">'
        )
        for instance in range(instances):
            first = instance * len(gpu.blocks)
            for index, block in enumerate(gpu.blocks, first):
                channel = instance * channels + block.channel
                lines.append(f'    <tb id="{index}" send="{block.send}" recv="{block.recv}" chan="{channel}">')
                lines += [_xml(step, s, first, instance * chunks) for s, step in enumerate(block.steps)]
                lines.append("    </tb>")
        lines.append("  </gpu>")
    return Exported("\n".join([*lines, "</algo>"]) + "\n", min_bytes, max_bytes)


def _instances(made: list[Gpu], channels: int, chunks: int, max_bytes: int | None) -> int:
    """The number of instances, a power of two. `LANES` limits the sending blocks; blocks move at least `PART` bytes."""
    blocks = max(len(gpu.blocks) for gpu in made)
    sending = max(sum(block.send >= 0 for block in gpu.blocks) for gpu in made)
    nodes = max(len(gpu.blocks) + sum(len(block.steps) for block in gpu.blocks) for gpu in made)
    most = [LANES // sending, THREAD_BLOCKS // blocks, CHANNELS // channels, CHUNKS // chunks]
    most.append((NODES - 1 - len(made)) // nodes)
    if max_bytes is not None:
        most.append(max_bytes // chunks // PART)
    return 1 << max(min(most), 1).bit_length() - 1


def _xml(step: XmlStep, number: int, first_block: int, first_chunk: int) -> str:
    block, needed = step.needs
    block += first_block if block >= 0 else 0
    chunk = first_chunk + step.chunks.start if step.chunks else -1
    return (
        f'      <step s="{number}" type="{step.kind}" srcbuf="i" srcoff="{chunk}" dstbuf="i" dstoff="{chunk}" '
        f'cnt="{len(step.chunks)}" depid="{block}" deps="{needed}" hasdep="{int(step.needed)}"/>'
    )


def _checked(made: list[Gpu]) -> list[Gpu]:
    fewer = f"{FEWER_CHUNKS}; or {FEWER_RANKS}"
    steps = max(len(block.steps) for gpu in made for block in gpu.blocks)
    check("the number of steps of a thread block", steps, STEPS, "MSCCL allows", FEWER_CHUNKS)
    blocks = max(len(gpu.blocks) for gpu in made)
    check("the number of thread blocks of a GPU", blocks, THREAD_BLOCKS, "an A100 runs at once", fewer, split=False)
    channels = 1 + max(block.channel for gpu in made for block in gpu.blocks)
    check("the number of channels", channels, CHANNELS, "MSCCL allows", fewer, split=False)
    nodes = 1 + len(made) + max(len(gpu.blocks) + sum(len(block.steps) for block in gpu.blocks) for gpu in made)
    check("the number of XML elements for a GPU", nodes, NODES, "MSCCL's parser keeps", FEWER_CHUNKS, split=False)
    return made
