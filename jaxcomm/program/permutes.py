"""Permutes: the rounds of collective-permutes by which XLA's own collectives run a schedule.

All ranks run the same program. Its tables, indexed by rank, say which chunk a rank sends and where the rank stores the
arriving chunk. Rounds that repeat form a loop, so that the program stays short for any number of rounds.
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

NOTHING: Final = -1  # entry of a table of chunk numbers that means "no chunk"
ADD: Final = -1  # the place of a chunk that is added to the rank's own chunk on arrival
UNROLLED: Final = 16  # a program with at most this number of permutes has no loops
_LONGEST = 2  # longest period of a loop, divided by the number of ranks


class Permute(NamedTuple):
    """One collective-permute: chunks of each source go to its target.

    Attributes:
      pairs: sources and targets; each rank is a source at most once, and a target at most once.
      sends: [iterations, ranks, m]: the chunks that a rank sends, or NOTHING.
      chunks: [iterations, ranks, m]: the chunks that a rank receives, or NOTHING.
      places: [iterations, ranks, m]: the places of the received chunks: BUFFER, ADD, or the number of a scratch slot,
        from 1 on. ADD needs no order of operands, because a sum of two operands has the same bits in either order.
    """

    pairs: tuple[Pair, ...]
    sends: Numbers
    chunks: Numbers
    places: Numbers


class Additions(NamedTuple):
    """Sums that all have the same number of operands.

    Attributes:
      chunks: [iterations, ranks, m]: the chunks that a rank sums, or NOTHING.
      places: [iterations, ranks, m, operands]: the operands' places, BUFFER or slots, in the order of addition.
    """

    chunks: Numbers
    places: Numbers


class PermuteRound(NamedTuple):
    """Permutes, then sums. All chunks that the permutes send are read before any of these chunks is overwritten."""

    permutes: tuple[Permute, ...]
    additions: tuple[Additions, ...]


class Loop(NamedTuple):
    """Rounds that run `iterations` times, each time with the next entry of every table."""

    iterations: int
    rounds: tuple[PermuteRound, ...]


class Permutes(NamedTuple):
    """A schedule's program for XLA; `slots` is the number of chunks that a rank's scratch memory holds."""

    ranks: int
    chunks: int
    slots: int
    loops: tuple[Loop, ...]

    @property
    def length(self) -> int:
        """The number of collective-permutes in the compiled program."""
        return sum(len(round_.permutes) for loop in self.loops for round_ in loop.rounds)


def compile_permutes(schedule: Schedule, most: int | None = None) -> Permutes:
    """Compiles a schedule to permutes. The permutes of the preconditions come first.

    Args:
      schedule: a schedule that the verifier has proved.
      most: greatest number of chunks that a rank sends in one permute; None means no limit. Longer messages are cut
        into several permutes, which take less memory.

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
    """A round that is not yet in tables.

    Attributes:
      permutes: for each permute, by pair of ranks: the chunks that the pair's first rank sends, and their places.
      adds: by rank: the sums after the permutes.
    """

    permutes: list[dict[Pair, list[tuple[int, int]]]]
    adds: dict[int, list[Add]]


def _draft(together: Sequence[Round], most: int) -> _Draft:
    """Returns a round whose messages are divided into permutes.

    A sum of the rank's own chunk and one arriving chunk is computed on arrival, unless a later permute of the round
    still sends the rank's own chunk.
    """
    messages: dict[Pair, list[tuple[int, int]]] = defaultdict(list)
    for rank, round_ in enumerate(together):
        for peer, chunk, place in round_.receives:
            messages[peer, rank].append((chunk, place))
    pieces = [
        (pairs, start)
        for pairs in matchings(messages)
        for start in range(0, max(len(messages[pair]) for pair in pairs), most)
    ]
    # The index of the permute that brings each chunk. If the chunk goes to the buffer, no later permute may send the
    # old value.
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
    """Gives each used slot the lowest free number of its rank. Returns the greatest number of slots of a rank."""
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
    """Divides the rounds into loops; yields each loop's iterations and period. A shorter program may exist."""
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
    """The pairs of a permute as two maps: from source to target, and from target to source."""

    targets: dict[int, int]
    sources: dict[int, int]

    @classmethod
    def of(cls, pairs: Iterable[Pair]) -> _Both:
        return cls(dict(iter(pairs)), {dst: src for src, dst in pairs})

    def take(self, other: _Both) -> bool:
        """Adds the pairs of another permute; returns False if together they are not a permutation."""
        if any(
            mine.get(rank, peer) != peer for mine, its in zip(self, other, strict=True) for rank, peer in its.items()
        ):
            return False
        self.targets.update(other.targets)
        self.sources.update(other.sources)
        return True


def _iterations(pairs: Sequence[Sequence[_Both]], start: int, period: int) -> int:
    """The greatest number of iterations of a loop whose body is the `period` rounds from `start` on."""
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
    """The tables of one round of a loop, from the round's drafts in all iterations."""
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
