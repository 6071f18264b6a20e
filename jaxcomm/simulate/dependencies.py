"""The dependencies of a schedule's messages. They follow from the ports, and from the chunks read and overwritten."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.profile.cluster import Cluster
from jaxcomm.schedules import Op, Schedule

READS, ADDS, WRITES = 1, 2, 4  # how a message uses a chunk at its sender or receiver

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Lists(NamedTuple):
    """Several lists in one array: the i-th is `members[first[i] : first[i + 1]]`."""

    members: Ints
    first: Ints

    @classmethod
    def of(cls, pairs: Ints, count: int) -> Lists:
        """Returns `count` lists, made from rows (index of the list, member)."""
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        ends = np.cumsum(np.bincount(pairs[:, 0], minlength=count))
        return cls(np.ascontiguousarray(pairs[:, 1]), np.concatenate([[0], ends]))


class Dependencies(NamedTuple):
    """The messages of one schedule in the order in which every port serves them, and their dependencies.

    All chunks that one rank sends another in one round form one message. In a round, a rank serves its peers in order
    of distance, so that no two ranks wait for the same third rank. A message starts when three conditions hold: its
    sender's and its receiver's ports are done with their earlier messages; earlier rounds have written all chunks that
    the message reads; and earlier rounds have read all chunks that the message overwrites or adds to. A message does
    not wait for other additions to the same chunk, because a sum consists of the contributions that have arrived.

    If each of many messages depends on each of many other messages, all these dependencies pass through one point: a
    node that is not a message and takes no time. The indices of points come after the indices of messages. `on_end` has
    rows (before, after) in which `after` waits for the arrival of `before`. In the rows of `on_free`, `after` waits
    only until the ports of `before` are free. If `before` and `after` are messages, `before` has the smaller index.

    A port may be faster than the other port of a message, or than a shared link on the path. Then the faster port
    serves the message at any time between its start and its arrival, and can serve other messages meanwhile. Points
    mark the times at which the faster port is free. The time of a point is `early` seconds before the end of its last
    predecessor; `early` is given for chunks of one byte.
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
        """Unrolls the schedule, but not its precondition, which is the schedule before the late ranks arrive.

        With 1024 ranks the result is large.
        """
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
        """The number of nodes: the messages, and the points of the dependencies."""
        return len(self.src) + len(self.early)


def _chunk_edges(touched: Ints, uses: Ints, message: Ints, rounds: int, messages: int) -> tuple[Ints, int]:
    """Returns rows (before, after) in which `after` waits for `before` because of a chunk, and the number of points.

    A touch is one chunk of a message, at the sender or at the receiver. Touches of one rank, chunk and round form a
    group. Successive touches of one rank and chunk are one group if all of them only read, or all only add. A
    group may begin when the previous group of the same rank and chunk is done. A point stands between two large groups:
    it waits for all messages of the first group, and all messages of the second group wait for it.
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
    for i in range(2):  # two groups of two messages have 4 dependencies, as many as with a point
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
    """Every message that is not the last on its port, and the next message on that port."""
    order = np.argsort(port, kind="stable")
    same = port[order[1:]] == port[order[:-1]]
    return order[:-1][same], order[1:][same]


def _counted(sizes: Ints) -> Ints:
    """Returns the numbers 0, 1, …, size − 1 for each of the sizes in turn."""
    counted: Ints = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return counted
