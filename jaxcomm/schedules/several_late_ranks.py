"""Several late ranks that come together: every rank is the root of as many chunks, and all ports are always busy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.schedules.reduce_scatter import reduce_scatter_to
from jaxcomm.schedules.schedule import Op, Schedule, Table, check_chunks, check_rank, check_ranks, join, rows


def stragglers(ranks: int, late: Sequence[int], chunks: int) -> Schedule:
    """AllReduce in which q late ranks join together after the others have reduce-scattered.

    Of each n chunks every rank is the root of one: it adds up what the late ranks (and, if it is late itself, the owner
    of the others' partial sum) send, and the sum is passed on so that every rank sends and receives n − 1 + q messages
    per n chunks. So the time tends to (n−1+q)/n of the buffer's with many chunks, which no schedule with one port per
    rank can beat. The first n chunks take up to three times as long as later n (3.3 times with 82 ranks and one late),
    and half of them hardly less: fewer than n chunks do not pay. One late rank alone is better off with `straggler`.

    Args:
      ranks: number of ranks n, at least 2.
      late: the late ranks, 1 to n − 1 of them, in any order.
      chunks: pieces k of the buffer, at least 1; each round moves one piece of s/k bytes per rank.

    Returns:
      A schedule whose `precondition` is the ReduceScatter of the others.

    Raises:
      ValueError: a rank out of range or named twice, nobody or everybody late, or no chunk.
    """
    check_late(ranks, late)
    check_chunks(chunks)
    late_ranks = tuple(sorted(late))
    rounds = num_rounds(ranks, len(late_ranks), chunks)
    parameters = (ranks, late_ranks, chunks)
    before = reduce_scatter_to(ranks, late_ranks, _owners(ranks, len(late_ranks)), chunks)
    return Schedule(
        "stragglers",
        ranks,
        chunks,
        rounds,
        rounds,
        1,
        _table,
        parameters,
        before,
        late_ranks[-1],
        other_late_ranks=late_ranks[:-1],
    )


def check_late(ranks: int, late: Sequence[int]) -> None:
    """Raises ValueError unless these can be the late ones of `ranks` ranks."""
    check_ranks(ranks)
    for index, rank in enumerate(late):
        check_rank(f"late[{index}]", rank, ranks)
    if len({*late}) < len(late):
        raise ValueError(f"late is {list(late)}; every late rank must stand there once")
    if not 1 <= len(late) < ranks:
        raise ValueError(f"late names {len(late)} of {ranks} ranks; at least one must be late and one must not")


def num_rounds(ranks: int, late: int, chunks: int) -> int:
    """Rounds of `stragglers` for `late` late ranks."""
    period, cycle = _period(ranks, late), np.arange(-(-chunks // ranks))[:, None]
    used = cycle * ranks + period.chunk < chunks
    return len(np.unique((cycle * (ranks - 1 + late) + period.time)[used]))


def _table(ranks: int, late: tuple[int, ...], chunks: int) -> Table:
    period, cycle = _period(ranks, len(late)), np.arange(-(-chunks // ranks))[:, None]
    member = np.array([*(rank for rank in range(ranks) if rank not in late), *late])
    round_, chunk = cycle * (ranks - 1 + len(late)) + period.time, cycle * ranks + period.chunk
    table = rows(round_, member[period.src], member[period.dst], chunk, Op.COPY)
    table[np.tile(period.reduces, len(cycle)), 4] = Op.REDUCE
    table = table[table[:, 3] < chunks]
    table[:, 0] = np.unique(table[:, 0], return_inverse=True)[1]  # at the start and the end some rounds are idle
    return join([table])


class _Message(NamedTuple):
    """The chunks that one index sends another: indices below n − q are the early ranks, the others the late ones."""

    src: int
    dst: int
    chunk: int
    op: Op
    after: tuple[int, ...]  # the messages that must have arrived before


class _Period(NamedTuple):
    """The messages of n chunks, each with its round; the next n chunks do the same n − 1 + q rounds later."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    chunk: NDArray[np.int64]
    reduces: NDArray[np.bool_]
    time: NDArray[np.int64]


@lru_cache
def _period(ranks: int, late: int) -> _Period:
    messages = _messages(ranks, late)
    src, dst, chunk, op, _ = zip(*messages, strict=True)
    time = _rounds(messages, ranks, ranks - 1 + late)
    return _Period(np.array(src), np.array(dst), np.array(chunk), np.array(op) == Op.REDUCE, np.array(time))


def _owners(ranks: int, late: int) -> tuple[int, ...]:
    """For each chunk of a period the index of the early rank that owns it: late roots have their chunks first."""
    return (*(chunk % (ranks - late) for chunk in range(late)), *range(ranks - late))


def _messages(ranks: int, late: int) -> list[_Message]:
    """A tree for every chunk in which all ranks together send, and receive, n − 1 + q messages each.

    A late root has q messages left to pass its sum on, so early ranks that got it pass it on to the rest. These
    messages they lack for the chunk of which they are the root, and other early ranks help them there.
    """
    early = ranks - late
    messages: list[_Message] = []

    def send(src: int, dst: int, chunk: int, op: Op, after: Sequence[int]) -> int:
        messages.append(_Message(src, dst, chunk, op, tuple(after)))
        return len(messages) - 1

    owners = _owners(ranks, late)
    left = [ranks - 1 + late - owners[:late].count(rank) for rank in range(early)]
    helpers = min(late, early)
    for chunk in range(late):
        root = early + chunk
        sums = [send(src, root, chunk, Op.REDUCE, ()) for src in (*range(early, ranks), owners[chunk]) if src != root]
        first = [(chunk * helpers + i) % early for i in range(helpers)]
        rest = [rank for rank in range(ranks) if rank not in (root, *first)]
        got = [send(root, dst, chunk, Op.COPY, sums) for dst in (*first, *rest[: late - helpers])]
        for i, dst in enumerate(rest[late - helpers :]):
            left[first[i % helpers]] -= 1
            send(first[i % helpers], dst, chunk, Op.COPY, [got[i % helpers]])

    spare = [max(0, messages_left - (ranks - 1)) for messages_left in left] + late * [0]
    for root in range(early):
        chunk = late + root
        sums = [send(src, root, chunk, Op.REDUCE, ()) for src in range(early, ranks)]
        others = sorted({*range(ranks)} - {root}, key=lambda rank: (-spare[rank], (rank - root) % ranks))
        arrived = {dst: send(root, dst, chunk, Op.COPY, sums) for dst in others[: left[root]]}
        for dst in others[left[root] :]:
            src = max(arrived, key=lambda rank: (spare[rank], -arrived[rank]))
            spare[src] -= 1
            arrived[dst] = send(src, dst, chunk, Op.COPY, [arrived[src]])
    return messages


def _rounds(messages: Sequence[_Message], ranks: int, degree: int) -> list[int]:
    """A round for every message, no two of a sender or of a receiver equal modulo the degree.

    Kőnig: a bipartite graph can be coloured with as many colours as its degree. Each message takes the first colour
    after what it waits for; where sender and receiver have none in common, two colours change places along a path.
    """
    send: list[dict[int, int]] = [{} for _ in range(ranks)]  # rank → colour → message
    receive: list[dict[int, int]] = [{} for _ in range(ranks)]
    free_to_send, free_to_receive = ([(1 << degree) - 1] * ranks for _ in range(2))
    colours, guess = [0] * len(messages), [0] * len(messages)

    def put(index: int, colour: int) -> None:
        src, dst = messages[index][:2]
        colours[index] = colour
        send[src][colour] = receive[dst][colour] = index
        free_to_send[src] &= ~(1 << colour)
        free_to_receive[dst] &= ~(1 << colour)

    def take(index: int) -> None:
        src, dst = messages[index][:2]
        del send[src][colours[index]], receive[dst][colours[index]]
        free_to_send[src] |= 1 << colours[index]
        free_to_receive[dst] |= 1 << colours[index]

    for index, (src, dst, chunk, _, after) in enumerate(messages):
        start = max((guess[other] + 1 for other in after), default=chunk * degree // ranks)
        common = free_to_send[src] & free_to_receive[dst]
        if common:
            colour = _first(common, start % degree)
        else:
            colour, other = (_first(free, start % degree) for free in (free_to_send[src], free_to_receive[dst]))
            path: list[int] = []
            rank, wanted, tables = dst, colour, (receive, send)
            while (found := tables[len(path) % 2][rank].get(wanted)) is not None:
                path.append(found)
                rank = messages[found].src if len(path) % 2 else messages[found].dst
                wanted = colour + other - wanted
            swapped = [colour + other - colours[found] for found in path]
            for found in path:
                take(found)
            for found, new in zip(path, swapped, strict=True):
                put(found, new)
        put(index, colour)
        guess[index] = start + (colour - start) % degree

    time = [0] * len(messages)
    for index, message in enumerate(messages):
        start = max((time[other] + 1 for other in message.after), default=0)
        time[index] = start + (colours[index] - start) % degree
    return time


def _first(bits: int, start: int) -> int:
    """The first bit set from `start` on, or from 0 on if no later one is."""
    bits = (bits >> start) << start or bits
    return (bits & -bits).bit_length() - 1
