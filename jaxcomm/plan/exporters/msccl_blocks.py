"""Builds MSCCL's thread blocks.

A block runs its steps in order. A step also waits for conflicting earlier steps of other blocks.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

from jaxcomm.plan.exporters.chunk_rounds import Round
from jaxcomm.schedules import Op

PEERS: Final = 32  # maximum number of peers per channel and direction
COUNT: Final = 71  # maximum number of chunks of a step


class ChunksMessage(NamedTuple):
    """Consecutive chunks that go from `src` to `dst` in one step."""

    src: int
    dst: int
    chunks: range
    op: Op


@dataclass
class XmlStep:
    """One step of a thread block.

    `needs` is the block and the number of the step that must finish first; (-1, -1) if there is none. `needed` says
    whether another step needs this step.
    """

    kind: str
    chunks: range
    needs: tuple[int, int]
    needed: bool = False


@dataclass
class XmlThreadBlock:
    channel: int
    send: int = -1
    recv: int = -1
    steps: list[XmlStep] = field(default_factory=list)
    passed: dict[int, int] = field(default_factory=dict)  # by block: the last of its steps for which this block waited


class Gpu:
    """The thread blocks of one GPU, and the last steps that wrote and read each chunk.

    Args:
      both: whether a single thread block both sends to a peer and receives from it, instead of one block per direction.
    """

    def __init__(self, both: bool) -> None:
        self.blocks: list[XmlThreadBlock] = []
        self._both = both
        self._index: dict[tuple[int, int, bool], int] = {}
        self._writer: dict[int, tuple[int, int]] = {}
        self._readers: dict[int, list[tuple[int, int]]] = {}

    def send(self, move: ChunksMessage, channel: int) -> None:
        index = self._block(move.dst, channel, receives=False)
        self.blocks[index].send = move.dst
        here = self._append(index, "s", move.chunks, [])
        for chunk in move.chunks:
            self._readers.setdefault(chunk, []).append(here)

    def receive(self, move: ChunksMessage, channel: int) -> None:
        index = self._block(move.src, channel, receives=True)
        self.blocks[index].recv = move.src
        readers = [reader for chunk in move.chunks for reader in self._readers.pop(chunk, [])]
        here = self._append(index, "rrc" if move.op == Op.REDUCE else "r", move.chunks, readers)
        for chunk in move.chunks:
            self._writer[chunk] = here

    def _block(self, peer: int, channel: int, receives: bool) -> int:
        index = self._index.setdefault((peer, channel, receives and not self._both), len(self.blocks))
        if index == len(self.blocks):
            self.blocks.append(XmlThreadBlock(channel))
        return index

    def _append(self, index: int, kind: str, chunks: range, readers: list[tuple[int, int]]) -> tuple[int, int]:
        """Appends a step that runs after `readers` and after the last writers of the chunks.

        Returns the step's block and number.
        """
        block = self.blocks[index]
        latest: dict[int, int] = {}
        for other, number in (*(self._writer[chunk] for chunk in chunks if chunk in self._writer), *readers):
            if other != index and number > block.passed.get(other, -1):
                latest[other] = max(number, latest.get(other, -1))
        block.passed |= latest
        needs = sorted(latest.items())
        for other, number in needs:
            self.blocks[other].steps[number].needed = True
        block.steps += [XmlStep("nop", range(0), need) for need in needs[1:]]
        block.steps.append(XmlStep(kind, chunks, needs[0] if needs else (-1, -1)))
        return index, len(block.steps) - 1


def gpus(ranks: int, moves: Sequence[Sequence[ChunksMessage]], most: int, both: bool) -> list[Gpu]:
    """The GPUs. A link's number of channels is in proportion to its number of steps, and at most `most`."""
    channels = _channels(Counter((move.src, move.dst) for group in moves for move in group), most)
    made = [Gpu(both) for _ in range(ranks)]
    for group in moves:
        taken = [(move, next(channels[move.src, move.dst])) for move in group]
        for move, channel in taken:
            made[move.src].send(move, channel)
        for move, channel in taken:
            made[move.dst].receive(move, channel)
    return made


def _channels(steps: Counter[tuple[int, int]], most: int) -> dict[tuple[int, int], Iterator[int]]:
    """The channels that each link's steps use in turn: the first ones on which both ends have room for another peer."""
    each = math.ceil(max(steps.values()) / most)
    taken: Counter[tuple[int, int, bool]] = Counter()
    channels: dict[tuple[int, int], Iterator[int]] = {}
    for (src, dst), count in sorted(steps.items()):
        free = (c for c in itertools.count() if max(taken[src, c, True], taken[dst, c, False]) < PEERS)
        own = list(itertools.islice(free, math.ceil(count / each)))
        for channel in own:
            taken[src, channel, True] += 1
            taken[dst, channel, False] += 1
        channels[src, dst] = itertools.cycle(own)
    return channels


def together(round_: Round) -> list[list[ChunksMessage]]:
    """A round's messages in groups. All messages of a group are sent before the first of them is received.

    If every link can send its chunks of this round in one step of consecutive chunks, the round is one group. Otherwise
    each chunk has a group, so that sends never wait for receives of the same group.
    """
    moves: list[ChunksMessage] = []
    for src, dst, chunk, op in sorted(round_, key=attrgetter("src", "dst", "op", "chunk")):
        last = moves[-1].chunks if moves else range(0)
        if moves and len(last) < COUNT and moves[-1] == (src, dst, range(last.start, chunk), op):
            moves[-1] = ChunksMessage(src, dst, range(last.start, chunk + 1), op)
        else:
            moves.append(ChunksMessage(src, dst, range(chunk, chunk + 1), op))
    if len({move[:2] for move in moves}) == len(moves):
        return [moves]
    return [
        [ChunksMessage(src, dst, range(chunk, chunk + 1), op) for src, dst, _, op in group]
        for chunk, group in itertools.groupby(round_, key=attrgetter("chunk"))
    ]
