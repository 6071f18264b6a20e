"""Permutes: the rounds of collective-permutes by which XLA's own collectives run a schedule.

One program serves all ranks: tables, read by the rank, say which chunk it sends, and where it stores the chunk that
comes. Rounds that repeat are one loop, so that the program stays short however many rounds there are.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.program.lowering import phase_ends
from jaxcomm.program.matchings import Pair, matchings
from jaxcomm.program.messages import BUFFER, Add, Round, rounds_of_all
from jaxcomm.schedules import Schedule

Numbers = NDArray[np.int32]

NOTHING: Final = -1  # in place of a chunk
ADD: Final = -1  # the place of a chunk that is added to the rank's own when it comes
UNROLLED: Final = 16  # permutes of a program without loops
_LONGEST = 2  # periods that are looked for, in ranks


class Permute(NamedTuple):
    """One collective-permute: chunks of each source go to its target.

    Attributes:
      pairs: sources and targets; each rank is at most once a source, and once a target.
      sends: [iterations, ranks, m]: the chunks that a rank sends, or NOTHING.
      chunks: [iterations, ranks, m]: those that it receives, or NOTHING.
      places: [iterations, ranks, m]: where it stores them: BUFFER, ADD (either order gives a sum of two the same bits),
        or a scratch slot from 1 on.
    """

    pairs: tuple[Pair, ...]
    sends: Numbers
    chunks: Numbers
    places: Numbers


class Additions(NamedTuple):
    """Sums of equally many operands.

    Attributes:
      chunks: [iterations, ranks, m]: the chunks that a rank sums, or NOTHING.
      places: [iterations, ranks, m, operands]: BUFFER or slots, in the order in which they are added.
    """

    chunks: Numbers
    places: Numbers


class PermuteRound(NamedTuple):
    """Permutes whose chunks are all read before any of them is stored over, then sums."""

    permutes: tuple[Permute, ...]
    additions: tuple[Additions, ...]


class Loop(NamedTuple):
    """Rounds that run `iterations` times, each time with the next entry of every table."""

    iterations: int
    rounds: tuple[PermuteRound, ...]


class Permutes(NamedTuple):
    """A schedule's program for XLA; `slots` are the chunks that a rank's scratch memory holds."""

    ranks: int
    chunks: int
    slots: int
    loops: tuple[Loop, ...]

    @property
    def length(self) -> int:
        """The number of collective-permutes in the compiled program."""
        return sum(len(round_.permutes) for loop in self.loops for round_ in loop.rounds)


def compile_permutes(schedule: Schedule, most: int | None = None) -> Permutes:
    """The permutes of a schedule, those of the preconditions first.

    Args:
      schedule: a schedule that the verifier has proved.
      most: chunks that a rank sends in one permute; None: no bound. Longer messages take several permutes, and less
        memory.

    Raises:
      PlanError: transfers of one round form a cycle that is not an exchange (see `compile`).
    """
    ends = phase_ends(schedule)
    phases: list[list[_Draft]] = [[] for _ in ends]
    for number, together in rounds_of_all(schedule):
        phases[bisect(ends, number)].append(_draft(together, most or schedule.num_chunks))
    slots = _number_slots([draft for phase in phases for draft in phase], schedule.ranks)
    short = sum(len(draft.permutes) for phase in phases for draft in phase) <= UNROLLED
    loops = []
    for phase in filter(None, phases):
        for iterations, period in [(1, len(phase))] if short else _rolled(phase, _LONGEST * schedule.ranks):
            rounds, phase = phase[: iterations * period], phase[iterations * period :]
            tables = (_tables(rounds[start::period], schedule.ranks) for start in range(period))
            loops.append(Loop(iterations, tuple(tables)))
    return Permutes(schedule.ranks, schedule.num_chunks, slots, tuple(loops))


class _Draft(NamedTuple):
    """A round: of each permute by pair the chunks and their places, and the sums of each rank."""

    permutes: list[dict[Pair, list[tuple[int, int]]]]
    adds: dict[int, list[Add]]


def _draft(together: Sequence[Round], most: int) -> _Draft:
    """A round with its messages in permutes. Sums of an own chunk and one that comes are made as it comes."""
    messages: dict[Pair, list[tuple[int, int]]] = defaultdict(list)
    for rank, round_ in enumerate(together):
        for peer, chunk, place in round_.receives:
            messages[peer, rank].append((chunk, place))
    pieces = [
        (pairs, start)
        for pairs in matchings(messages)
        for start in range(0, max(len(messages[pair]) for pair in pairs), most)
    ]
    # The permute that brings each chunk: none that sends the chunk may come after, if it goes to the buffer.
    when = {
        (*pair, chunk): index
        for index, (pairs, start) in enumerate(pieces)
        for pair in pairs
        for chunk, _ in messages[pair][start : start + most]
    }
    adds = {}
    for rank, round_ in enumerate(together):
        last_sent: dict[int, int] = {}
        for target, chunk in round_.sends:
            last_sent[chunk] = max(last_sent.get(chunk, 0), when[rank, target, chunk])
        came = {place: peer for peer, _, place in round_.receives if place != BUFFER}
        left = []
        for add in round_.adds:
            slots = [place for place in add.places if place != BUFFER]
            peer = came.get(slots[0], -1) if len(slots) == 1 else -1
            if peer < 0 or when[peer, rank, add.chunk] < last_sent.get(add.chunk, -1):
                left.append(add)
                continue
            entries = messages[peer, rank]
            entries[entries.index((add.chunk, slots[0]))] = add.chunk, ADD if BUFFER in add.places else BUFFER
        if left:
            adds[rank] = left
    permutes = [
        {pair: messages[pair][start : start + most] for pair in pairs if messages[pair][start:]}
        for pairs, start in pieces
    ]
    return _Draft(permutes, adds)


def _number_slots(drafts: Sequence[_Draft], ranks: int) -> int:
    """Gives what is left in slots the lowest that are free on its rank, and returns how many that takes."""
    free: list[list[int]] = [[] for _ in range(ranks)]
    taken = [0] * ranks
    number: list[dict[int, int]] = [{ADD: ADD, BUFFER: BUFFER} for _ in range(ranks)]

    def take(rank: int, slot: int) -> int:
        if slot in (ADD, BUFFER):
            return slot
        if not free[rank]:
            taken[rank] += 1
            free[rank].append(taken[rank])
        number[rank][slot] = heapq.heappop(free[rank])
        return number[rank][slot]

    for draft in drafts:
        for permute in draft.permutes:
            for (src, dst), entries in permute.items():
                permute[src, dst] = [(chunk, take(dst, slot)) for chunk, slot in entries]
        for rank, adds in draft.adds.items():
            draft.adds[rank] = [Add(chunk, tuple(number[rank][slot] for slot in slots)) for chunk, slots in adds]
            for add in draft.adds[rank]:
                for slot in add.places:
                    if slot != BUFFER:
                        heapq.heappush(free[rank], slot)
    return max(taken)


def _rolled(rounds: Sequence[_Draft], longest: int) -> Iterator[tuple[int, int]]:
    """Iterations and periods of loops over these rounds, one after the other; the shortest program is not sought."""
    pairs = [[_Both.of(permute) for permute in draft.permutes] for draft in rounds]
    plain = start = 0
    while start < len(rounds):
        best, saved = (1, 1), 0
        for period in range(1, min(longest, (len(rounds) - start) // 2) + 1):
            iterations = _iterations(pairs, start, period)
            found = sum(map(len, pairs[start + period : start + iterations * period]))
            if found > saved:
                best, saved = (iterations, period), found
        if saved == 0:
            plain, start = plain + 1, start + 1
            continue
        if plain:
            yield 1, plain
        yield best
        plain, start = 0, start + best[0] * best[1]
    if plain:
        yield 1, plain


class _Both(NamedTuple):
    """The pairs of a permute: by source, and by target."""

    targets: dict[int, int]
    sources: dict[int, int]

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> _Both:
        return cls(dict(iter(pairs)), {dst: src for src, dst in pairs})

    def take(self, other: _Both) -> bool:
        """Adds the pairs of another permute, or returns False: together they are no permutation."""
        if any(
            mine.get(rank, peer) != peer for mine, its in zip(self, other, strict=True) for rank, peer in its.items()
        ):
            return False
        self.targets.update(other.targets)
        self.sources.update(other.sources)
        return True


def _iterations(pairs: Sequence[Sequence[_Both]], start: int, period: int) -> int:
    """The number of times that the `period` rounds from `start` on repeat."""
    body = [[_Both({**t}, {**s}) for t, s in permutes] for permutes in pairs[start : start + period]]
    for iteration in itertools.count(1):
        first = start + iteration * period
        if first + period > len(pairs):
            return iteration
        for mine, permutes in zip(body, pairs[first : first + period], strict=True):
            if len(mine) != len(permutes) or not all(map(_Both.take, mine, permutes)):
                return iteration
    raise AssertionError("a count has no end")


def _tables(drafts: Sequence[_Draft], ranks: int) -> PermuteRound:
    """The tables of one round of a loop, from what it is in every iteration."""
    permutes = []
    for alike in zip(*(draft.permutes for draft in drafts), strict=True):
        pairs = sorted(set().union(*alike))
        shape = len(drafts), ranks, max(len(entries) for permute in alike for entries in permute.values())
        sends, chunks, places = (np.full(shape, filler, np.int32) for filler in (NOTHING, NOTHING, BUFFER))
        for i, permute in enumerate(alike):
            for (src, dst), entries in permute.items():
                for j, (chunk, place) in enumerate(entries):
                    sends[i, src, j] = chunks[i, dst, j] = chunk
                    places[i, dst, j] = place
        permutes.append(Permute(tuple(pairs), sends, chunks, places))
    every = [(i, rank, add) for i, draft in enumerate(drafts) for rank, adds in draft.adds.items() for add in adds]
    additions = []
    for operands in sorted({len(add.places) for _, _, add in every}):
        found: dict[tuple[int, int], list[Add]] = defaultdict(list)
        for i, rank, add in every:
            if len(add.places) == operands:
                found[i, rank].append(add)
        shape = len(drafts), ranks, max(map(len, found.values()))
        chunks, places = np.full(shape, NOTHING, np.int32), np.full((*shape, operands), BUFFER, np.int32)
        for (i, rank), adds in found.items():
            for j, add in enumerate(adds):
                chunks[i, rank, j], places[i, rank, j] = add
        additions.append(Additions(chunks, places))
    return PermuteRound(tuple(permutes), tuple(additions))
