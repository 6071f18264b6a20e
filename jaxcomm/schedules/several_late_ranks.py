"""Several late ranks that join together. Every rank is the root of the same number of chunks; all ports stay busy."""

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

    Each rank is the root of one chunk in every n chunks. The root adds the late ranks' parts. A late root also adds the
    partial sum of the early ranks. The chunk's owner, an early rank, sends this partial sum to the root. The root's sum
    is then passed on so that every rank sends and receives n − 1 + q messages per n chunks. With many chunks the time
    tends to (n−1+q)/n times the time of the buffer through one port. No schedule with one port per rank can beat that.
    The time of the first n chunks is up to about three times the time of n later chunks (3.3 times with 82 ranks, one
    of them late). A schedule with n/2 chunks takes hardly less time than one with n, so fewer than n chunks are not
    worthwhile. For one late rank use `straggler`.

    Args:
      ranks: number of ranks n, at least 2.
      late: the late ranks, 1 to n − 1 of them, in any order.
      chunks: pieces k of the buffer, at least 1; each round moves one piece, a k-th of the buffer, per rank.

    Returns:
      A schedule whose `precondition` is the ReduceScatter of the others.

    Raises:
      ValueError: a rank out of range or named twice, no rank or every rank late, or no chunk.

    Example:
      >>> jaxcomm.schedules.stragglers(8, late=[3, 6], chunks=4).late_ranks
      frozenset({3, 6})
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
    """Raises ValueError unless these can be the late ranks among `ranks` ranks."""
    check_ranks(ranks)
    for index, rank in enumerate(late):
        check_rank(f"late[{index}]", rank, ranks)
    if len({*late}) < len(late):
        raise ValueError(f"late is {list(late)}; it must name each late rank once")
    if not 1 <= len(late) < ranks:
        raise ValueError(f"late names {len(late)} of {ranks} ranks; at least one must be late and one must not")


def num_rounds(ranks: int, late: int, chunks: int) -> int:
    """The number of rounds of `stragglers` with `late` late ranks."""
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
    table[:, 0] = np.unique(table[:, 0], return_inverse=True)[1]  # leaves out idle rounds
    return join([table])


class _Message(NamedTuple):
    """A chunk that one index sends to another. Indices below n − q stand for early ranks, the last q for late ranks."""

    src: int
    dst: int
    chunk: int
    op: Op
    after: tuple[int, ...]  # numbers of the messages that must arrive before this one is sent


class _Period(NamedTuple):
    """The messages of n chunks (n ranks, q late), each with its round.

    The messages of the next n chunks follow n − 1 + q rounds later.
    """

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
    """For each chunk of a period, the index of the early rank that owns it. Chunks with late roots come first."""
    return (*(chunk % (ranks - late) for chunk in range(late)), *range(ranks - late))


def _messages(ranks: int, late: int) -> list[_Message]:
    """The messages of one tree per chunk. With q late ranks, each rank sends and receives n − 1 + q messages.

    A late root has only q messages left to pass its sum on, so early ranks that got the sum forward it to the rest. An
    early rank that forwards sums can send fewer messages for the chunk of which it is the root. Other early ranks then
    send these messages.
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
    """Returns the round of every message.

    Each message gets one of `degree` colours, which is its round modulo `degree`. Two messages of one sender, or two
    messages to one receiver, never have the same colour.

    Such colours exist, because the edges of a bipartite graph of degree d can be coloured with d colours (Kőnig's
    theorem). Each message takes the first free colour after the colours of the messages that it waits for. A colour is
    free if neither the sender nor the receiver has used it. If none is free, two colours are swapped along a path.
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
    """The number of the first set bit from `start` on. If there is no such bit, the first set bit of all."""
    bits = (bits >> start) << start or bits
    return (bits & -bits).bit_length() - 1
