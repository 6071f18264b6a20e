"""Tunes the number of chunks of a straggler schedule, and the straggler schedule's part of the buffer in a hybrid."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.schedules.schedule import ALIGNMENT, aligned_volume
from jaxcomm.simulate.closed_form import Delays

SLACK: Final = 1.001

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Tuned(NamedTuple):
    """A member of the straggler family: the straggler schedule sums `covered` of the `chunks`, a ring sums the rest.

    `before` is the time that the other ranks' ReduceScatter takes, `after` is the time of all later work, and `seconds`
    is the mean time from the late rank's arrival on.
    """

    chunks: int
    covered: int
    before: float
    after: float
    seconds: float


class Grid(NamedTuple):
    """Times of many members of the straggler family at once, in arrays of equal shape; see `Tuned`."""

    chunks: Ints
    covered: Ints
    before: Floats
    after: Floats

    def best(self, delays: Delays) -> Tuned:
        """The member with the fewest chunks among all members within 0.1 % of the least mean time."""
        times = delays.exposed(self.before) + self.after
        index = int(np.where(times <= times.min() * SLACK, self.chunks, np.iinfo(np.int64).max).argmin())
        chunks, covered, before, after = (field.ravel()[index].item() for field in self)
        return Tuned(chunks, covered, before, after, times.ravel()[index].item())


def best(ranks: int, nbytes: int, delays: Delays, alpha: float, beta: float) -> Tuned:
    """The better of `tuned_straggler` and `tuned_hybrid`."""
    found = tuned_straggler(ranks, nbytes, delays, alpha, beta), tuned_hybrid(ranks, nbytes, delays, alpha, beta)
    return min((member for member in found if member), key=lambda member: member.seconds)


def tuned_straggler(ranks: int, nbytes: int, delays: Delays, alpha: float, beta: float) -> Tuned:
    """The straggler schedule whose number of chunks gives the least mean time.

    If the delay is longer than the others' ReduceScatter, this number is k* = sqrt((L-1)·sβ/α) with L = ceil(log2 n),
    apart from alignment.

    Args:
      ranks: number of ranks n.
      nbytes: size of the buffer s.
      delays: how late the late rank is.
      alpha: seconds per round α.
      beta: seconds per byte β.
    """
    limit = max_chunks(ranks, nbytes)
    coarse = grid(ranks, nbytes, counts(limit, ranks - 1), np.array([0]), alpha, beta).best(delays)
    near = _around(coarse.covered, limit)
    return grid(ranks, nbytes, near, np.array([0]), alpha, beta).best(delays)


def tuned_hybrid(ranks: int, nbytes: int, delays: Delays, alpha: float, beta: float) -> Tuned | None:
    """The hybrid with the least mean time, or None if the buffer is too small for a hybrid's chunks.

    Few chunks save rounds; with many chunks, the covered part fits the delay better. The numbers of covered and of
    other chunks are searched together. See `tuned_straggler` for the arguments.
    """
    limit = max_chunks(ranks, nbytes)
    if limit <= ranks:
        return None
    covered, blocks = counts(limit - ranks, ranks - 1), counts((limit - 1) // ranks, 1)
    coarse = grid(ranks, nbytes, covered, blocks, alpha, beta).best(delays)
    covered = _around(coarse.covered, limit - ranks)
    blocks = _around((coarse.chunks - coarse.covered) // ranks, (limit - 1) // ranks)
    return grid(ranks, nbytes, covered, blocks, alpha, beta).best(delays)


def covering(ranks: int, nbytes: int, longest: float, alpha: float, beta: float, count: int) -> list[Tuned]:
    """Members of the straggler family for increasing delays.

    For each of `count` delays up to `longest`, returns the fastest member whose `before` is at most the delay.

    Args:
      ranks: number of ranks n.
      nbytes: size of the buffer s.
      longest: the longest delay worth covering, in seconds.
      alpha: seconds per round α.
      beta: seconds per byte β.
      count: greatest number of members.

    Returns:
      Members without duplicates. The `seconds` of a member assume a delay of at least `before`.
    """
    limit = max_chunks(ranks, nbytes)
    blocks = np.append(0, counts(max(1, (limit - 1) // ranks), 1))
    times = grid(ranks, nbytes, counts(limit, ranks - 1), blocks, alpha, beta)
    found: dict[Tuned, None] = {}
    for share in longest * np.geomspace(1 / 256, 1, count):
        fits = times.before <= share
        if fits.any():
            found[Grid(*(field[fits] for field in times)).best(Delays([share]))] = None
    return list(found)


def grid(ranks: int, nbytes: int, covered: Ints, blocks: Ints, alpha: float, beta: float) -> Grid:
    """Times of all combinations of a number of covered chunks and a number of chunks in each of the ring's blocks.

    Source: rounds and volumes of `jaxcomm.schedules.straggler` and `hybrid`.
    """
    k, m = covered[:, None].astype(np.int64), blocks[None, :].astype(np.int64)
    chunks = k + m * ranks
    others = ranks - 1
    alone, lap = others - 1, 2 * others * (m > 0)
    joined = k - 1 + others.bit_length()
    before = alone * alpha + aligned_volume(nbytes, chunks, alone * -(-k // others), alone) * beta
    after = (joined + lap) * alpha + aligned_volume(nbytes, chunks, joined + lap * m, joined + lap) * beta
    allowed = (chunks <= max_chunks(ranks, nbytes)) | (chunks == chunks.min())
    return Grid(chunks, np.broadcast_to(k, chunks.shape), before, np.where(allowed, after, np.inf))


def max_chunks(ranks: int, nbytes: int) -> int:
    """The greatest useful number of chunks.

    Chunks are not smaller than the executor's alignment, because a smaller chunk takes the same time. A program has at
    most about 2^18 operations.
    """
    return max(1, min(-(-nbytes // ALIGNMENT), max(2 * ranks, min(4096, 2**18 // ranks))))


@lru_cache(maxsize=256)  # many sizes have the same limit
def counts(limit: int, multiple: int) -> Ints:
    """Numbers of chunks to try: all small numbers, steps of 7 % up to `limit`, and multiples just below the steps.

    `multiple` is the number of owners. If the number of chunks is a multiple of it, all owners have the same work.
    """
    steps = np.geomspace(1, limit, 1 + int(np.log(limit) / 0.07)).round().astype(np.int64)
    steps = np.concatenate([np.arange(1, min(limit, 32) + 1), steps, steps // multiple * multiple])
    found = np.unique(steps[steps >= 1])
    found.setflags(write=False)
    return found


def _around(count: int, limit: int) -> Ints:
    """At most about a hundred numbers within 8 % of `count`."""
    low, high = max(1, int(count / 1.08)), min(limit, int(count * 1.08) + 2)
    return np.unique(np.concatenate([np.linspace(low, high, 100).astype(np.int64), [min(count, limit)]]))
