"""Lowers a schedule's transfers to steps. A step sums several ranks' chunks and stores the sum at several ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.errors import PlanError
from jaxcomm.schedules import Op, Schedule
from jaxcomm.schedules.schedule import Table


class ProgramStep(NamedTuple):
    """`rank` sums the chunks of the ranks `reads` and stores the sum at the ranks `writes`. Steps run in list order."""

    chunk: int
    rank: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]


def lower(schedule: Schedule) -> list[ProgramStep]:
    """Returns the steps of the precondition and of the schedule, round by round.

    Sums into one chunk of one rank become one step, unless a transfer reads the chunk in between. An exchange becomes
    one step, so that both ranks get the same bits. A copy of a finished chunk becomes a store of the step that finished
    the chunk. Sums of different ranks stay separate, because the early ranks' partial sums must run before the late
    rank arrives.
    """
    steps = [
        (round_, ProgramStep(chunk, draft.rank, draft.reads, draft.writes))
        for round_, chunk, draft in _drafts(schedule)
    ]
    return [step for _, step in sorted(steps, key=lambda each: (each[0], each[1].chunk))]


class Sum(NamedTuple):
    """A sum at the end of a round: `rank` adds up its own chunk and the chunks from the other ranks in `reads`."""

    round: int
    chunk: int
    rank: int
    reads: tuple[int, ...]


def sums(schedule: Schedule) -> list[Sum]:
    """The sums of `lower`'s steps by round, for ranks that receive chunks instead of reading others' memory.

    Both ranks of an exchange compute the same sum. A sum has the same operands as its step, in the same order, and so
    the same bits.
    """
    return sorted(
        Sum(round_, chunk, rank, draft.reads) for round_, chunk, draft in _drafts(schedule) for rank in draft.into
    )


def all_rounds(schedule: Schedule) -> Table:
    """The transfers of the preconditions and the schedule, with rounds counted from the first precondition."""
    ends = phase_ends(schedule)
    return np.concatenate(
        [
            phase.table() + np.array([end - phase.num_rounds, 0, 0, 0, 0], np.int32)
            for phase, end in zip(schedule.phases, ends, strict=True)
        ]
    )


def phase_ends(schedule: Schedule) -> list[int]:
    """For every phase, the number of the round after its last round."""
    ends: list[int] = np.cumsum([phase.num_rounds for phase in schedule.phases]).tolist()
    return ends


class Draft(NamedTuple):
    """A step of a chunk; `round` counts only the rounds in which the chunk moves."""

    round: int
    rank: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    into: tuple[int, ...]  # the ranks at which `reduce` transfers form this sum; empty for a copy


class Alike(NamedTuple):
    """Chunks with the same moves, in rounds that may differ. `rounds[i, d]` is the round of draft d of chunk i."""

    chunks: NDArray[np.int32]
    rounds: NDArray[np.int32]
    drafts: tuple[Draft, ...]


def lower_alike(schedule: Schedule) -> Iterator[Alike]:
    """The steps of `lower`, once for each set of chunks with the same moves; there are few such sets."""
    table, ends = all_rounds(schedule), phase_ends(schedule)
    table = table[np.argsort(table[:, 3], kind="stable")]  # the rounds of a chunk stay in order
    round_, chunk = table[:, 0], table[:, 3]
    another = np.diff(chunk, prepend=-1) != 0
    later = another | (np.diff(round_, prepend=-1) != 0)
    starts, number = np.flatnonzero(another), np.cumsum(later) - 1
    own = number - np.repeat(number[starts], np.diff(starts, append=len(table)))
    moves = table[:, [3, 0, 1, 2, 4]]
    moves[:, 0], moves[:, 1] = np.searchsorted(ends, round_, side="right"), own
    found: dict[bytes, list[int]] = {}  # moves -> the first row of each chunk with these moves
    for start, end in pairwise([*starts.tolist(), len(table)]):
        found.setdefault(moves[start:end].tobytes(), []).append(start)
    when = round_[later]
    for data, members in found.items():
        drafts = _chunk_drafts(schedule, int(chunk[members[0]]), np.frombuffer(data, moves.dtype).reshape(-1, 5))
        own_rounds = np.array([draft.round for draft in drafts])
        yield Alike(chunk[members], when[number[members][:, None] + own_rounds], drafts)


def _drafts(schedule: Schedule) -> Iterator[tuple[int, int, Draft]]:
    """Yields the round, the chunk and the draft of every step, grouped by chunk."""
    for chunks, rounds, drafts in lower_alike(schedule):
        for chunk, when in zip(chunks.tolist(), rounds.tolist(), strict=True):
            yield from ((round_, chunk, draft) for round_, draft in zip(when, drafts, strict=True))


def _chunk_drafts(schedule: Schedule, chunk: int, moves: Table) -> tuple[Draft, ...]:
    """The steps of one chunk. A row of `moves` is a phase, a round of the chunk, a sender, a receiver and an op."""
    lowering = _Chunk(schedule, chunk)
    for _, phase in groupby(moves.tolist(), key=itemgetter(0)):
        for round_, together in groupby(phase, key=itemgetter(1)):
            lowering.round(round_, [(src, dst, op) for *_, src, dst, op in together])
        lowering.close()  # a sum of the precondition must not wait for the late ranks
    drafts = sorted(lowering.drafts, key=itemgetter(0))
    return tuple(
        Draft(round_, rank, reads, tuple(sorted(writes)), into) for round_, rank, reads, writes, into in drafts
    )


class _Open(NamedTuple):
    round: int
    sources: list[int]


class _Step(NamedTuple):
    """A draft that may still get further writes."""

    round: int
    rank: int
    reads: tuple[int, ...]
    writes: set[int]
    into: tuple[int, ...]


class _Chunk:
    """The steps of one chunk. A sum is open until a transfer reads the sum or overwrites one of its operands."""

    def __init__(self, schedule: Schedule, chunk: int) -> None:
        self._everybody = (1 << schedule.ranks) - 1
        self._late_ranks = schedule.phases[0].late_ranks
        self._chunk = chunk
        self.drafts: list[_Step] = []
        self._open: dict[int, _Open] = {}
        self._readers: dict[int, set[int]] = defaultdict(set)  # rank -> the open sums that read the rank's value
        self._holds = [1 << rank for rank in range(schedule.ranks)]  # contributions, as a set of bits
        self._maker: dict[int, int] = {}  # rank -> the step that made the rank's value
        self._touched: dict[int, int] = {}  # rank -> the last step that reads or writes the rank's value

    def round(self, round_: int, together: list[tuple[int, int, int]]) -> None:
        """Lowers the transfers (src, dst, op) of one round. Values are read before a transfer overwrites them."""
        into: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for src, dst, op in together:
            into[dst].append((src, op))
        while into:
            read = {src for dst, arrivals in into.items() for src, _ in arrivals if src != dst}
            ready = [dst for dst in into if dst not in read]
            for dst in ready:
                for src, op in into.pop(dst):
                    self._copy(round_, src, dst) if op == Op.COPY else self._reduce(round_, src, dst)
            if not ready:
                self._exchange(round_, into)

    def close(self) -> None:
        """Turns every open sum into a step."""
        self._close(list(self._open))

    def _reduce(self, round_: int, src: int, dst: int) -> None:
        self._close([src, *self._readers[dst]])
        if dst in self._open and src in self._open[dst].sources:
            self._close([dst])  # a step reads the chunk of a rank only once
        sources = self._open[dst].sources if dst in self._open else []
        self._open[dst] = _Open(round_, [*sources, src])
        self._readers[src].add(dst)

    def _copy(self, round_: int, src: int, dst: int) -> None:
        self._close([src, dst, *self._readers[dst]])
        maker = self._maker.get(src, -1)
        if self._holds[src] == self._everybody and self._touched.get(dst, -1) <= maker != -1:
            self.drafts[maker].writes.add(dst)
            self._holds[dst] = self._everybody
            self._maker[dst] = self._touched[dst] = maker
        else:
            self._add(round_, (dst, src), (src,), {dst}, ())

    def _exchange(self, round_: int, into: dict[int, list[tuple[int, int]]]) -> None:
        """Lowers one exchange and removes it from `into`. All receivers in `into` also send in this round."""
        sources = {dst: [src for src, _ in arrivals] for dst, arrivals in into.items()}
        for a, arrivals in into.items():
            b = arrivals[0][0]
            alone = sum(a in s for s in sources.values()) == sum(b in s for s in sources.values()) == 1
            if alone and into.get(b) == [(a, Op.REDUCE)] and arrivals == [(b, Op.REDUCE)]:
                self._close([a, b, *self._readers[a], *self._readers[b]])
                self._add(round_, (min(a, b), max(a, b)), (min(a, b), max(a, b)), {a, b}, (a, b))
                del into[a], into[b]
                return
        raise PlanError(
            f"round {round_}, chunk {self._chunk}: ranks {sorted(into)} overwrite what they read from each other.\n"
            "  Cure: only two ranks that add each other's chunk may do so in one round; put others into a later one."
        )

    def _close(self, ranks: Iterable[int]) -> None:
        for dst in ranks:
            if dst in self._open:
                round_, sources = self._open.pop(dst)
                for src in sources:
                    self._readers[src].discard(dst)
                self._add(round_, (dst, *sources), tuple(sorted((dst, *sources))), {dst}, (dst,))

    def _add(
        self, round_: int, helpers: tuple[int, ...], reads: tuple[int, ...], writes: set[int], into: tuple[int, ...]
    ) -> None:
        """Appends a step. The first of `helpers` that is not late executes it or, if all are late, the first of all."""
        rank = next((helper for helper in helpers if helper not in self._late_ranks), helpers[0])
        index = len(self.drafts)
        self.drafts.append(_Step(round_, rank, reads, writes, into))
        value = 0
        for r in reads:
            value |= self._holds[r]
            self._touched[r] = index
        for w in writes:
            self._holds[w] = value
            self._maker[w] = self._touched[w] = index
