"""Messages: the rounds of sends and receives by which one rank runs a schedule, and their encoding.

Messages are for ranks that cannot read each other's memory. A round's messages are sent at once, then the rank adds up
the chunks that arrived. Sums have the operands of the sums in the schedule's program, in the same order. So messages
and the program give the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from jaxcomm.program.lowering import all_rounds, sums
from jaxcomm.schedules import Op, Schedule
from jaxcomm.schedules.schedule import group_starts

MAGIC, VERSION = 0x474D434A, 1  # "JCMG" in little-endian bytes
BUFFER = 0  # the place of a chunk in the rank's own buffer; place i > 0 is scratch slot i - 1


class Send(NamedTuple):
    """The rank's own chunk, sent to `peer`."""

    peer: int
    chunk: int


class Receive(NamedTuple):
    """A chunk from `peer`, stored at `place`."""

    peer: int
    chunk: int
    place: int


class Add(NamedTuple):
    """`buffer[chunk] = Σ places`, in this order; a single place means a copy."""

    chunk: int
    places: tuple[int, ...]


class Round(NamedTuple):
    """A rank's round. Two ranks list the messages between them in the same order, so that sends and receives match."""

    sends: list[Send]
    receives: list[Receive]
    adds: list[Add]


class RankMessages(NamedTuple):
    """One rank's rounds, except rounds in which the rank does nothing. Its scratch memory must hold `slots` chunks."""

    ranks: int
    rank: int
    chunks: int
    slots: int
    rounds: tuple[Round, ...]

    def encode(self) -> bytes:
        """Little-endian uint32 words: magic, version, ranks, rank, chunks, slots, number of rounds, then the rounds.

        A round is encoded as the lengths of its three lists, then the lists themselves.
        """
        words = [MAGIC, VERSION, self.ranks, self.rank, self.chunks, self.slots, len(self.rounds)]
        for sends, receives, adds in self.rounds:
            words += (len(sends), len(receives), len(adds))
            for message in (*sends, *receives):
                words += message
            for chunk, places in adds:
                words += (chunk, len(places), *places)
        return np.array(words, dtype="<u4").tobytes()


def compile_messages(schedule: Schedule) -> tuple[RankMessages, ...]:
    """Compiles a schedule to the messages of every rank. The messages of the preconditions come first.

    Args:
      schedule: a schedule that the verifier has proved.

    Raises:
      PlanError: transfers of one round form a cycle that is not an exchange (see `compile`).
    """
    rounds = [together for _, together in rounds_of_all(schedule)]
    lists = [tuple(round_ for round_ in own if any(round_)) for own in zip(*rounds, strict=True)]
    return tuple(
        RankMessages(schedule.ranks, rank, schedule.num_chunks, scratch_slots(own), own)
        for rank, own in enumerate(lists)
    )


def rounds_of_all(schedule: Schedule) -> Iterator[tuple[int, list[Round]]]:
    """Yields the number of each round in which at least one rank sends, and every rank's part in the round.

    Rounds are counted from the first round of the first precondition. For errors see `compile_messages`.
    """
    table = all_rounds(schedule)
    table = table[np.lexsort((table[:, 2], table[:, 1], table[:, 3], table[:, 0]))]
    ranks = [_Rank() for _ in range(schedule.ranks)]
    waiting = iter([*sums(schedule), None])
    due = next(waiting)
    for rows in np.split(table, group_starts(table[:, 0])[1:]):
        transfers = rows.tolist()
        sent = {(src, chunk) for _, src, _, chunk, _ in transfers}
        for _, src, dst, chunk, op in transfers:
            ranks[src].now.sends.append(Send(dst, chunk))
            ranks[dst].receive(src, chunk, aside=op == Op.REDUCE or (dst, chunk) in sent, add=op == Op.REDUCE)
        while due and due.round <= transfers[0][0]:
            ranks[due.rank].add(due.chunk, due.rank, due.reads)
            due = next(waiting)
        yield transfers[0][0], [rank.end_round() for rank in ranks]


def scratch_slots(rounds: Iterable[Round]) -> int:
    """The number of scratch slots into which these rounds of a rank receive."""
    return max((receive.place for round_ in rounds for receive in round_.receives), default=BUFFER)


def exchanges(rounds: int) -> tuple[RankMessages, RankMessages]:
    """Messages by which two ranks send each other half of their buffers in every round, for measurements.

    In each round a rank sends back the half that it received in the round before.

    Args:
      rounds: number of rounds, at least 1.
    """

    def of(rank: int) -> RankMessages:
        def round_(index: int) -> Round:
            sent = (index + rank) % 2
            return Round([Send(1 - rank, sent)], [Receive(1 - rank, 1 - sent, BUFFER)], [])

        return RankMessages(2, rank, 2, 0, tuple(map(round_, range(rounds))))

    return of(0), of(1)


class _Rank:
    """The current round of one rank, and the places of chunks that it has received but not yet added."""

    def __init__(self) -> None:
        self.now = Round([], [], [])
        self._slots = 0
        self._free: list[int] = []
        self._kept: dict[tuple[int, int], int] = {}  # chunk and source -> place
        self._done: list[int] = []  # places that are free from the next round on
        self._to_copy: dict[int, int] = {}  # chunk -> place

    def receive(self, src: int, chunk: int, *, aside: bool, add: bool) -> None:
        place = self._take() if aside else BUFFER
        if add:
            self._kept[chunk, src] = place
        elif aside:
            self._to_copy[chunk] = place
        self.now.receives.append(Receive(src, chunk, place))

    def add(self, chunk: int, rank: int, reads: tuple[int, ...]) -> None:
        places = tuple(BUFFER if source == rank else self._kept.pop((chunk, source)) for source in reads)
        self.now.adds.append(Add(chunk, places))
        self._done += (place for place in places if place != BUFFER)

    def end_round(self) -> Round:
        for chunk, place in self._to_copy.items():
            self.now.adds.append(Add(chunk, (place,)))
            self._done.append(place)
        self._to_copy.clear()
        self._free += self._done
        self._done.clear()
        ended, self.now = self.now, Round([], [], [])
        return ended

    def _take(self) -> int:
        if self._free:
            return self._free.pop()
        self._slots += 1
        return self._slots
