"""Export to MSCCL: the XML algorithm that msccl-executor-nccl runs.

Follows msccl-executor-nccl as of commit 3b40a2a8 (msccl_parser.cc, msccl_kernel.cu) with the limits of commit 206e0c49
(msccl_struct.h: 64 steps; some relatives allow more), and the attributes that msccl-tools writes (ir.py as of commit
0448b1d8, `old_format`).

A thread block either sends to one peer or receives from one, over one channel; a channel carries every chunk whose
number is that of the channel modulo their number. Steps are `s` (send), `r` (receive) and `rrc` (receive and add);
steps of different blocks of a GPU that touch the same chunk are ordered by `depid` and `deps`, of which a step has one:
each further one needs a `nop`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final

from jaxcomm.errors import PlanError
from jaxcomm.plan.exporters.chunk_rounds import THREAD_BLOCKS, Exported, Round, check, fitting, split
from jaxcomm.schedules import Op, Schedule

STEPS: Final = 64  # per thread block, `nop` included
CHANNELS: Final = 32
PEERS: Final = 32  # per channel and direction
NODES: Final = 4096  # XML elements that the parser keeps for one GPU
CHUNKS: Final = 2**15 - 1  # offsets are held in 16 bits

_FEWER_CHUNKS: Final = "plan with fewer chunks, or export another byte range (--bytes)"
_FEWER_RANKS: Final = "use a schedule with fewer peers per rank, such as a ring, or fewer ranks"


def msccl_xml(schedule: Schedule, name: str, min_bytes: int, max_bytes: int | None) -> Exported:
    """An MSCCL algorithm for an in-place allreduce, protocol Simple.

    Args:
      schedule: a schedule that the verifier has proved; late ranks are waited for where their data is needed.
      name: the algorithm's name.
      min_bytes: smallest buffer.
      max_bytes: largest buffer; None means no limit.

    Returns:
      XML. MSCCL runs it for buffers whose number of elements is a multiple of the chunks.

    Raises:
      PlanError: a limit of MSCCL that the schedule does not keep however its chunks are dealt out to channels.
    """
    if max_bytes == 0:
        raise PlanError("the byte range ends at 0, which MSCCL reads as no limit.\n  Cure: export another byte range.")
    check("the number of chunks", schedule.num_chunks, CHUNKS, "MSCCL allows", _FEWER_CHUNKS)
    most = min(schedule.num_chunks, CHANNELS)

    def build(order: list[list[Round]]) -> list[_Gpu]:
        moved = [each for phase in order for each in phase]
        return split(1, most, lambda channels: _checked(_gpus(schedule, moved, channels)))

    gpus = fitting(schedule, build)
    channels = 1 + max(block.channel for gpu in gpus for block in gpu.blocks)
    lines = [
        f'<algo name="{name}" proto="Simple" nchannels="{channels}" nchunksperloop="{schedule.num_chunks}" '
        f'ngpus="{schedule.ranks}" coll="allreduce" inplace="1" outofplace="0" minBytes="{min_bytes}" '
        f'maxBytes="{max_bytes or 0}">'
    ]
    for rank, gpu in enumerate(gpus):
        lines.append(
            f'  <gpu id="{rank}" i_chunks="{schedule.num_chunks}" o_chunks="{schedule.num_chunks}" s_chunks="0">'
        )
        for index, block in enumerate(gpu.blocks):
            lines.append(f'    <tb id="{index}" send="{block.send}" recv="{block.recv}" chan="{block.channel}">')
            lines += [f"      {step.xml(number)}" for number, step in enumerate(block.steps)]
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return Exported("\n".join([*lines, "</algo>"]) + "\n", min_bytes, max_bytes)


@dataclass
class _XmlStep:
    """One step; `needs` is the block and step that must have finished, `needed` whether another step needs this one."""

    kind: str
    chunk: int
    needs: tuple[int, int]
    needed: bool = False

    def xml(self, number: int) -> str:
        chunk, count = (-1, 0) if self.kind == "nop" else (self.chunk, 1)
        return (
            f'<step s="{number}" type="{self.kind}" srcbuf="i" srcoff="{chunk}" dstbuf="i" dstoff="{chunk}" '
            f'cnt="{count}" depid="{self.needs[0]}" deps="{self.needs[1]}" hasdep="{int(self.needed)}"/>'
        )


@dataclass
class _ThreadBlock:
    send: int
    recv: int
    channel: int
    steps: list[_XmlStep] = field(default_factory=list)
    passed: dict[int, int] = field(default_factory=dict)  # block -> its last step that this one has waited for


class _Gpu:
    """The thread blocks of one GPU, and who touched which chunk last."""

    def __init__(self) -> None:
        self.blocks: list[_ThreadBlock] = []
        self._index: dict[tuple[int, int, int], int] = {}
        self._writer: dict[int, tuple[int, int]] = {}
        self._readers: dict[int, list[tuple[int, int]]] = {}

    def step(self, kind: str, chunk: int, channel: int, send: int = -1, recv: int = -1) -> None:
        """Appends a step behind all that it conflicts with."""
        index = self._index.setdefault((send, recv, channel), len(self.blocks))
        if index == len(self.blocks):
            self.blocks.append(_ThreadBlock(send, recv, channel))
        block = self.blocks[index]
        conflicts = [self._writer[chunk]] if chunk in self._writer else []
        if kind != "s":
            conflicts += self._readers.get(chunk, [])
        latest: dict[int, int] = {}
        for other, number in conflicts:
            if other != index and number > block.passed.get(other, -1):
                latest[other] = max(number, latest.get(other, -1))
        block.passed |= latest
        needs = sorted(latest.items())
        for other, number in needs:
            self.blocks[other].steps[number].needed = True
        block.steps += [_XmlStep("nop", chunk, need) for need in needs[1:]]
        block.steps.append(_XmlStep(kind, chunk, needs[0] if needs else (-1, -1)))
        here = index, len(block.steps) - 1
        if kind == "s":
            self._readers.setdefault(chunk, []).append(here)
        else:
            self._writer[chunk] = here
            self._readers[chunk] = []


def _gpus(schedule: Schedule, order: Sequence[Round], channels: int) -> list[_Gpu]:
    gpus = [_Gpu() for _ in range(schedule.ranks)]
    for round_ in order:
        for chunk, messages in groupby(round_, key=attrgetter("chunk")):
            moved = list(messages)
            for src, dst, _, _ in moved:
                gpus[src].step("s", chunk, chunk % channels, send=dst)
            for src, dst, _, op in moved:
                gpus[dst].step("rrc" if op == Op.REDUCE else "r", chunk, chunk % channels, recv=src)
    return gpus


def _checked(gpus: list[_Gpu]) -> list[_Gpu]:
    for gpu in gpus:
        steps = [len(block.steps) for block in gpu.blocks]
        check("the number of steps of a thread block", max(steps), STEPS, "MSCCL allows", _FEWER_CHUNKS)
        for direction in ("send", "recv"):
            used = [block.channel for block in gpu.blocks if getattr(block, direction) >= 0]
            peers = max(map(used.count, set(used)), default=0)
            check(f"the number of {direction} peers of a channel", peers, PEERS, "MSCCL allows", _FEWER_RANKS)
        fewer = f"{_FEWER_CHUNKS}; or {_FEWER_RANKS}"
        check("the number of thread blocks of a GPU", len(steps), THREAD_BLOCKS, "an A100 runs at once", fewer)
        nodes = 1 + len(gpus) + len(steps) + sum(steps)
        check("the number of XML elements for a GPU", nodes, NODES, "MSCCL's parser keeps", _FEWER_CHUNKS)
    return gpus
