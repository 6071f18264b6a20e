"""Symbolic execution of a program: the contributions that every rank holds, and the order that waits enforce."""

from __future__ import annotations

from jaxcomm.errors import PlanError
from jaxcomm.program.contributions import CURE
from jaxcomm.program.program import ProgramOp


class ChunkRun:
    """The state of one chunk while a program runs in list order.

    Two operations conflict if one writes a rank's chunk that the other reads or writes. Waits must order conflicting
    operations, directly or through other operations on the chunk.
    """

    def __init__(self, chunk: int, ranks: int) -> None:
        self._chunk = chunk
        self._holds = [frozenset([rank]) for rank in range(ranks)]
        self._bits = list(range(ranks))  # a number per rank; equal numbers stand for equal bits
        self._sums: dict[tuple[int, ...], int] = {}  # the operands' bits in order of addition -> the sum's bits
        self._ops: list[int] = []  # indices in the program; bit i of the sets below stands for the i-th index
        self._finished: dict[int, int] = {}  # op -> the operations that have finished when this op has finished
        self._writer = [0] * ranks
        self._readers = [0] * ranks  # the operations that have read the chunk since the last write

    def step(self, index: int, op: ProgramOp) -> frozenset[int]:
        """Executes operation `index`; returns the ranks whose contributions it adds up."""
        finished = 0
        for other in op.waits:
            finished |= self._finished.get(other, 0)
        for rank in (*op.reads, *op.writes):
            racing = self._writer[rank] | (self._readers[rank] if rank in op.writes else 0)
            racing &= ~finished
            if racing:
                other = self._ops[racing.bit_length() - 1]
                raise PlanError(
                    f"program: op {index} does not wait for op {other}, with which it races for chunk {self._chunk} of "
                    f"rank {rank}.{CURE}"
                )
        value: frozenset[int] = frozenset()
        for rank in op.reads:
            if value & self._holds[rank]:
                twice = sorted(value & self._holds[rank])
                raise PlanError(
                    f"program: op {index} adds the contribution of ranks {twice} to chunk {self._chunk} twice.{CURE}"
                )
            value |= self._holds[rank]
        bit = 1 << len(self._ops)
        self._ops.append(index)
        self._finished[index] = finished | bit
        for rank in op.reads:
            self._readers[rank] |= bit
        terms = tuple(self._bits[rank] for rank in op.reads)
        bits = terms[0] if len(terms) == 1 else self._sums.setdefault(terms, len(self._holds) + len(self._sums))
        for rank in op.writes:
            self._holds[rank], self._bits[rank], self._writer[rank], self._readers[rank] = value, bits, bit, 0
        return value

    def check_complete(self) -> None:
        """Raises PlanError unless every rank holds every contribution, with the same bits."""
        for rank, held in enumerate(self._holds):
            if len(held) < len(self._holds):
                missing = sorted(set(range(len(self._holds))) - held)
                raise PlanError(
                    f"program: at the end chunk {self._chunk} of rank {rank} lacks the contribution of ranks {missing}."
                    f"{CURE}"
                )
        for rank, bits in enumerate(self._bits):
            if bits != self._bits[0]:
                raise PlanError(
                    f"program: at the end chunk {self._chunk} of rank {rank} was added up in another order than that "
                    f"of rank 0, so that their bits may differ.{CURE}"
                )
