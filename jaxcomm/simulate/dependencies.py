"""The dependencies of a schedule's messages: their ports, and the chunks that they read and overwrite."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.profile.cluster import Cluster
from jaxcomm.schedules import Op, Schedule

READS, ADDS, WRITES = 1, 2, 4  # a message's uses of a chunk at one of its ends

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Lists(NamedTuple):
    """A list for each of some: the i-th is `members[first[i] : first[i + 1]]`."""

    members: Ints
    first: Ints

    @classmethod
    def of(cls, pairs: Ints, count: int) -> Lists:
        """`count` lists, from rows (index of the list, member)."""
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        ends = np.cumsum(np.bincount(pairs[:, 0], minlength=count))
        return cls(np.ascontiguousarray(pairs[:, 1]), np.concatenate([[0], ends]))


class Dependencies(NamedTuple):
    """The messages of one schedule in the order in which every port serves them, and what they await.

    What one rank sends another in one round goes as one message. In a round, a rank serves its peers by distance, so
    that no two of them wait for the same third one. A message starts when its sender's and its receiver's port are done
    with the messages before it, and all earlier rounds have written what it reads, and read what it overwrites or adds
    to. It need not wait for other additions to the same chunk, as sums consist of the contributions that have come.

    After the messages come points that take no time: where many messages wait for all of many others, these wait for a
    point between. `on_end` are rows (before, after) of those that wait for an arrival, `on_free` of those that wait
    only for ports. An earlier message has the smaller index; points are an exception. Where one port of a message is
    faster than the other, it serves the message at any time between its start and its arrival, and others meanwhile:
    points say when; so do both ports where a shared link on the way is slower. A point comes `early` seconds, of a
    chunk of one byte, before the end of what it awaits.
    """

    round: Ints
    src: Ints
    dst: Ints
    chunks: Ints
    early: Floats
    on_end: Ints
    on_free: Ints

    @classmethod
    def of(cls, schedule: Schedule, network: Cluster) -> Dependencies:
        """Unrolls the schedule without its precondition; at 1024 ranks mind its size."""
        n, k = schedule.ranks, schedule.num_chunks
        round_, src, dst, chunk, op = schedule.table().astype(np.int64).T
        keys, message, chunks = np.unique(
            (round_ * n + (dst - src) % n) * n + src, return_inverse=True, return_counts=True
        )
        ends = (np.concatenate([src, dst]) * k + np.tile(chunk, 2)) * (schedule.num_rounds + 1) + np.tile(round_, 2)
        uses = np.concatenate([np.full(len(message), READS), np.where(op == Op.REDUCE, ADDS, WRITES)])
        known, points = _chunk_edges(ends, uses, np.tile(message, 2), schedule.num_rounds + 1, len(keys))
        round_, src = keys // (n * n), keys % n
        dst = (src + keys // n % n) % n
        remote = network.remote(src, dst)
        slower = np.maximum(network.port_beta(src, dst), network.shared(src, dst)[1].max(axis=0))
        early, on_end = [np.zeros(points)], [known]
        on_free: list[Ints] = []
        for rank, beta in zip((src, dst), network.port_betas(src, dst), strict=True):
            before, after = _following(2 * rank + remote)
            same = round_[before] == round_[after]
            fast = np.flatnonzero(beta < slower)
            first = len(keys) + sum(map(len, early))
            starts, served, may_start = (first + part * len(fast) + np.arange(len(fast)) for part in range(3))
            early += [(each * chunks)[fast] for each in (slower, -beta, slower - beta)]
            point_of, starts_of = np.full((2, len(keys)), -1)
            point_of[fast], starts_of[fast] = served, starts
            begin_of = np.arange(len(keys))
            begin_of[fast] = may_start
            is_fast = point_of >= 0
            release = np.where(is_fast[before], point_of[before], before)
            on_end += [
                np.stack([starts, served], axis=1),
                np.stack([may_start, fast], axis=1),
                np.stack([release, point_of[after]], axis=1)[is_fast[after]],
            ]
            for rows, which in ((on_end, ~same), (on_free, same)):
                rows.append(np.stack([release, begin_of[after]], axis=1)[which])
                rows.append(np.stack([before, starts_of[before]], axis=1)[which & is_fast[before]])
        known, count = np.concatenate(on_end), len(keys) + sum(map(len, early))
        known = np.stack(np.divmod(np.unique(known[:, 0] * count + known[:, 1]), count), axis=1)
        return cls(round_, src, dst, chunks, np.concatenate(early), known, np.concatenate(on_free))

    @property
    def nodes(self) -> int:
        """The number of messages and points."""
        return len(self.src) + len(self.early)


def _chunk_edges(touched: Ints, uses: Ints, message: Ints, rounds: int, messages: int) -> tuple[Ints, int]:
    """The messages that wait for each other for the sake of a chunk, as rows (before, after), and the number of points.

    A touch is a chunk of a message at one of its ends; those of one rank, chunk and round are a group, and so are those
    of several rounds that only read, or only add. A group may begin when all of the group before it, of the same rank
    and chunk, are done.
    """
    order = np.argsort(touched, kind="stable")
    touched, message = touched[order], message[order]
    first = np.flatnonzero(np.diff(touched, prepend=-1))
    if len(first):
        use = np.bitwise_or.reduceat(uses[order], first)
        fresh = np.diff(touched[first] // rounds, prepend=-1) != 0
        first = first[fresh | (use > ADDS) | (np.diff(use, prepend=0) != 0)]
    size = np.diff(first, append=len(touched))
    place = touched[first] // rounds
    before = np.flatnonzero(place[1:] == place[:-1])
    if not len(before):
        return np.empty((0, 2), np.int64), 0
    many = (size[before] > 1) & (size[before + 1] > 1)
    exchange = many & (size[before] == 2) & (size[before + 1] == 2)
    rows = [np.empty((0, 2), np.int64)]
    for i in range(2):  # two messages each: a point would save nothing
        for j in range(2):
            pair = before[exchange]
            rows.append(np.stack([message[first[pair] + i], message[first[pair + 1] + j]], axis=1))
    few = before[~many]
    width = size[few] * size[few + 1]
    of, at = np.repeat(few, width), _counted(width)
    rows.append(np.stack([message[first[of] + at % size[of]], message[first[of + 1] + at // size[of]]], axis=1))
    joined = before[many & ~exchange]
    points = messages + np.arange(len(joined))
    into, out = size[joined], size[joined + 1]
    rows.append(np.stack([message[np.repeat(first[joined], into) + _counted(into)], np.repeat(points, into)], axis=1))
    rows.append(np.stack([np.repeat(points, out), message[np.repeat(first[joined + 1], out) + _counted(out)]], axis=1))
    return np.concatenate(rows), len(joined)


def _following(port: Ints) -> tuple[Ints, Ints]:
    """Every message that is not the last on its port, and the next one there."""
    order = np.argsort(port, kind="stable")
    same = port[order[1:]] == port[order[:-1]]
    return order[:-1][same], order[1:][same]


def _counted(sizes: Ints) -> Ints:
    """0, 1, …, size − 1 for one size after the other."""
    counted: Ints = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return counted
