"""Programs: the flat list of operations that the executor runs, and its encoding.

A program is for ranks that can read each other's memory (in one process, or on one host). A rank that executes an
operation reads the operands in the other ranks' buffers. The list has the operations of all ranks, and its order is a
valid order of execution.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import lt
from typing import Final, NamedTuple, NoReturn

import numpy as np

from jaxcomm.errors import PlanError
from jaxcomm.program.lowering import Alike, Draft, lower_alike
from jaxcomm.schedules import Schedule

MAGIC, VERSION = 0x4750434A, 1  # "JCPG" in little-endian bytes
MAX_RANKS, MAX_CHUNKS = 1 << 12, 1 << 24  # limits, so that a damaged file cannot make us allocate much memory
MAX_PIECES = 1 << 22  # maximum of ranks · chunks; such a schedule compiles in some seconds
_HEADER = 5
_OP = 5  # number of words of an operation before its lists
_NONE: Final = np.empty(0, np.int32)


class ProgramOp(NamedTuple):
    """`v = Σ buffer[r][chunk] for r in reads`, in this order; then `buffer[w][chunk] = v` for w in writes.

    Attributes:
      rank: the rank that executes the operation.
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
        """Little-endian uint32 words: magic, version, ranks, chunks, number of ops, then the ops.

        An op is encoded as its rank, its chunk, the lengths of its three lists, then the lists themselves.
        """
        words = [MAGIC, VERSION, self.ranks, self.chunks, len(self.ops)]
        for rank, chunk, reads, writes, waits in self.ops:
            words += (rank, chunk, len(reads), len(writes), len(waits), *reads, *writes, *waits)
        return np.array(words, dtype="<u4").tobytes()

    @classmethod
    def decode(cls, data: bytes) -> Program:
        """The inverse of `encode`, with all checks.

        Raises:
          PlanError: the bytes are not a program; the error text names the word.
        """
        if len(data) % 4:
            raise PlanError(f"program: {len(data)} bytes are not whole 32-bit words.\n  Cure: compile the plan again.")
        return _Reader(np.frombuffer(data, dtype="<u4").tolist()).program()


def compile(schedule: Schedule) -> bytes:
    """Compiles a schedule to an encoded program. The operations of the precondition come first.

    Args:
      schedule: a schedule that the verifier has proved; a wrong schedule gives a wrong program.

    Raises:
      PlanError: ranks · chunks exceeds `MAX_PIECES`, or transfers of one round form a cycle that is not an exchange.
        Such a cycle needs memory beyond the buffers.
    """
    if (pieces := schedule.ranks * schedule.num_chunks) > MAX_PIECES:
        raise PlanError(
            f"{schedule.kind}: {schedule.ranks} ranks and {schedule.num_chunks} chunks are {pieces} pieces; a "
            f"program for ranks that share memory has at most {MAX_PIECES}.\n"
            "  Cure: make these calls under `with jaxcomm.use_plan(None)`, or give them fewer ranks in one process."
        )
    return _encode(schedule.ranks, schedule.num_chunks, list(lower_alike(schedule)))


def _encode(ranks: int, chunks: int, groups: list[Alike]) -> bytes:
    """Encodes all steps, ordered by round and chunk. Chunks with the same steps are encoded together."""
    waits = [_waits(group.drafts) for group in groups]
    steps = [step for group, each in zip(groups, waits, strict=True) for step in zip(group.drafts, each, strict=True)]
    sizes = [_OP + len(draft.reads) + len(draft.writes) + len(waited) for draft, waited in steps]
    # These arrays have one entry per operation, step by step, and within each step chunk by chunk.
    step = np.repeat(np.arange(len(steps)), [len(group.chunks) for group in groups for _ in group.drafts])
    chunk = np.concatenate([_NONE, *(group.chunks for group in groups for _ in group.drafts)])
    round_ = np.concatenate([_NONE, *(group.rounds.T.ravel() for group in groups)])
    order = np.lexsort((step, chunk, round_))
    index = np.empty_like(order)
    index[order] = np.arange(len(order))
    size = np.array(sizes, np.int64)[step[order]]
    ends = _HEADER + np.cumsum(size)
    start = (ends - size)[index]

    words = np.empty(_HEADER + int(size.sum()), "<u4")
    words[:_HEADER] = MAGIC, VERSION, ranks, chunks, len(order)
    first = 0  # index of the entry for the group's first step and chunk
    for group, each in zip(groups, waits, strict=True):
        members = len(group.chunks)
        own = index[first : first + members * len(each)].reshape(-1, members)
        for draft, waited in zip(group.drafts, each, strict=True):
            head = (draft.rank, 0, len(draft.reads), len(draft.writes), len(waited), *draft.reads, *draft.writes)
            block = np.empty((members, len(head) + len(waited)), "<u4")
            block[:, : len(head)] = head
            block[:, 1] = group.chunks
            block[:, len(head) :] = own[waited].T
            words[start[first : first + members, None] + np.arange(block.shape[1])] = block
            first += members
    return words.tobytes()


def _waits(drafts: tuple[Draft, ...]) -> list[list[int]]:
    """For each step of a chunk, in order, the steps that it waits for: conflicting steps that no other wait implies."""
    write_of: dict[int, int] = {}
    readers_of: dict[int, list[int]] = {}
    before: list[int] = []  # per step, the steps that have finished when it starts, as a set of bits
    found = []
    for index, draft in enumerate(drafts):
        conflicts = {write_of[r] for r in (*draft.reads, *draft.writes) if r in write_of}
        conflicts.update(reader for w in draft.writes for reader in readers_of.get(w, ()))
        done, waits = 0, []
        for other in sorted(conflicts, reverse=True):
            if not done >> other & 1:
                waits.append(other)
                done |= before[other] | 1 << other
        for r in draft.reads:
            readers_of.setdefault(r, []).append(index)
        for w in draft.writes:
            write_of[w] = index
            readers_of[w] = []
        before.append(done)
        found.append(waits[::-1])
    return found


class _Reader:
    """Reads the words of a program in order and refuses the first word that is out of bounds."""

    def __init__(self, words: list[int]) -> None:
        self._words = words
        self._at = 0

    def program(self) -> Program:
        self._word("the magic number", MAGIC, MAGIC)
        self._word("the version", VERSION, VERSION)
        ranks = self._word("the number of ranks", 1, MAX_RANKS)
        chunks = self._word("the number of chunks", 1, MAX_CHUNKS)
        count = self._word("the number of operations", 0, (len(self._words) - _HEADER) // _OP)
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

    def _ascending(self, name: str, count: int, end: int) -> tuple[int, ...]:
        numbers = tuple(self._words[self._at : self._at + count])
        if len(numbers) == count and all(map(lt, numbers, (*numbers[1:], end))):
            self._at += count
            return numbers
        low = 0
        for _ in range(count):
            low = self._word(name, low, end - 1) + 1
        raise AssertionError("one of these words is refused")

    def _word(self, name: str, low: int, high: int) -> int:
        if self._at == len(self._words):
            self._fail(f"the program ends before {name}")
        word = self._words[self._at]
        if not low <= word <= high:
            self._fail(f"{name} is {word}, which must be {low if low == high else f'in [{low}, {high}]'}")
        self._at += 1
        return word

    def _fail(self, problem: str) -> NoReturn:
        raise PlanError(f"program: word {self._at}: {problem}.\n  Cure: compile the plan again.")
