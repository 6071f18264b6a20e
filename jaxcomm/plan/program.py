"""Programs: the flat list of operations that the executor runs, and its encoding.

A program is for memory that all ranks can read (one process, or peers of one host): whoever executes an operation pulls
what it reads. The list holds the operations of all ranks, and its order is a valid order of execution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np

from jaxcomm.errors import PlanError
from jaxcomm.plan.lowering import Step, lower
from jaxcomm.schedules import Schedule

MAGIC, VERSION = 0x4750434A, 1  # "JCPG" in little-endian bytes
MAX_RANKS, MAX_CHUNKS = 1 << 12, 1 << 24  # bounds on what a damaged file can make us allocate
_HEADER = 5


class ProgramOp(NamedTuple):
    """`v = Σ buffer[r][chunk] for r in reads`, in this order; then `buffer[w][chunk] = v` for w in writes.

    Attributes:
      rank: who executes it.
      chunk: the piece of the buffer.
      reads: ranks whose chunk is summed, ascending and distinct.
      writes: ranks whose chunk receives the sum, ascending and distinct.
      waits: indices of earlier operations that must have finished, ascending.
    """

    rank: int
    chunk: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    waits: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """The operations of all ranks on a buffer of `chunks` pieces."""

    ranks: int
    chunks: int
    ops: tuple[ProgramOp, ...]

    def encode(self) -> bytes:
        """Little-endian uint32 words: magic, version, ranks, chunks, ops; per op rank, chunk, 3 counts, 3 lists."""
        words = [MAGIC, VERSION, self.ranks, self.chunks, len(self.ops)]
        for rank, chunk, reads, writes, waits in self.ops:
            words += (rank, chunk, len(reads), len(writes), len(waits), *reads, *writes, *waits)
        return np.array(words, dtype="<u4").tobytes()

    @classmethod
    def decode(cls, data: bytes) -> Program:
        """The inverse of `encode`, for bytes from anywhere.

        Raises:
          PlanError: the bytes are not a program; the message says at which word.
        """
        if len(data) % 4:
            raise PlanError(f"program: {len(data)} bytes are not whole 32-bit words.\n  Cure: compile the plan again.")
        return _Reader(np.frombuffer(data, dtype="<u4").tolist()).program()


def compile(schedule: Schedule) -> bytes:
    """The encoded program of a schedule, its precondition first.

    Args:
      schedule: a schedule that the verifier has proved; a wrong one gives a program that is as wrong.

    Raises:
      PlanError: transfers of one round form a cycle that is not an exchange, which needs memory beyond the buffers.
    """
    steps = lower(schedule)
    return Program(schedule.ranks, schedule.num_chunks, _order(steps, schedule.num_chunks)).encode()


def _order(steps: list[Step], chunks: int) -> tuple[ProgramOp, ...]:
    """The steps in list order with their waits: only conflicts, without those that another wait implies."""
    last_write: list[dict[int, int]] = [{} for _ in range(chunks)]
    readers: list[dict[int, list[int]]] = [{} for _ in range(chunks)]
    before: list[int] = []  # per op the ops of its chunk that have finished when it starts, as a set of bits
    bit: list[int] = []
    count = [0] * chunks
    ops = []
    for index, (chunk, rank, reads, writes) in enumerate(steps):
        write_of, readers_of = last_write[chunk], readers[chunk]
        conflicts = {write_of[r] for r in (*reads, *writes) if r in write_of}
        conflicts.update(reader for w in writes for reader in readers_of.get(w, ()))
        done, waits = 0, []
        for other in sorted(conflicts, reverse=True):
            if not done & bit[other]:
                waits.append(other)
                done |= before[other] | bit[other]
        for r in reads:
            readers_of.setdefault(r, []).append(index)
        for w in writes:
            write_of[w] = index
            readers_of[w] = []
        before.append(done)
        bit.append(1 << count[chunk])
        count[chunk] += 1
        ops.append(ProgramOp(rank, chunk, reads, writes, tuple(reversed(waits))))
    return tuple(ops)


class _Reader:
    """Reads the words of a program in order and refuses the first one that is out of bounds."""

    def __init__(self, words: list[int]) -> None:
        self._words = words
        self._at = 0

    def program(self) -> Program:
        self._word("the magic number", MAGIC, MAGIC)
        self._word("the version", VERSION, VERSION)
        ranks = self._word("the number of ranks", 1, MAX_RANKS)
        chunks = self._word("the number of chunks", 1, MAX_CHUNKS)
        count = self._word("the number of operations", 0, (len(self._words) - _HEADER) // 5)
        ops = tuple(self._op(index, ranks, chunks) for index in range(count))
        if self._at != len(self._words):
            self._fail(f"{len(self._words) - self._at} words follow the last operation")
        return Program(ranks, chunks, ops)

    def _op(self, index: int, ranks: int, chunks: int) -> ProgramOp:
        rank = self._word("rank", 0, ranks - 1)
        chunk = self._word("chunk", 0, chunks - 1)
        reads = self._word("the number of reads", 1, ranks)
        writes = self._word("the number of writes", 1, ranks)
        waits = self._word("the number of waits", 0, index)
        return ProgramOp(
            rank,
            chunk,
            self._ascending("a rank to read", reads, ranks),
            self._ascending("a rank to write", writes, ranks),
            self._ascending("an operation to wait for", waits, index),
        )

    def _ascending(self, what: str, count: int, end: int) -> tuple[int, ...]:
        low, numbers = 0, []
        for _ in range(count):
            numbers.append(self._word(what, low, end - 1))
            low = numbers[-1] + 1
        return tuple(numbers)

    def _word(self, what: str, low: int, high: int) -> int:
        if self._at == len(self._words):
            self._fail(f"the program ends before {what}")
        word = self._words[self._at]
        if not low <= word <= high:
            self._fail(f"{what} is {word}, which must be {low if low == high else f'in [{low}, {high}]'}")
        self._at += 1
        return word

    def _fail(self, problem: str) -> NoReturn:
        raise PlanError(f"program: word {self._at}: {problem}.\n  Cure: compile the plan again.")
