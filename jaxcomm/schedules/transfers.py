"""Schedules for a late rank given transfer by transfer, by who knows more of the network than a closed form does."""

from __future__ import annotations

import functools

import numpy as np

from jaxcomm.schedules.schedule import Op, Schedule, Table, check_chunks, check_rank, check_ranks, loads, measure

COLUMNS = ("round", "sender", "receiver", "chunk", "op")  # of a transfer


@functools.lru_cache(maxsize=16)  # a plan names one in many of its entries
def listed(ranks: int, late: int, chunks: int, before: tuple[int, ...], after: tuple[int, ...]) -> Schedule:
    """AllReduce by transfers that are given, those before a late rank comes and those after.

    Whether they give every rank every sum is for `jaxcomm.plan.verify` to prove.

    Args:
      ranks: number of ranks n, at least 2.
      late: the late rank, in [0, n).
      chunks: pieces k of the buffer, at least 1.
      before: round, sender, receiver, chunk and op (an `Op`) of every transfer, one after the other, without the late
        rank.
      after: the same for those that follow.

    Returns:
      A schedule whose `precondition` are the transfers `before`.

    Raises:
      ValueError: no chunk, a number out of range, the late rank in `before`, or transfers that are not whole.
    """
    check_ranks(ranks)
    check_rank("late", late, ranks)
    check_chunks(chunks)
    for name, numbers in (("before", before), ("after", after)):
        if len(numbers) % len(COLUMNS):
            raise ValueError(f"{name} has {len(numbers)} numbers; every transfer has 5: {', '.join(COLUMNS)}")
        for index, number in enumerate(numbers):
            end = (len(numbers), ranks, ranks, chunks, len(Op))[index % len(COLUMNS)]
            if not 0 <= number < end:
                raise ValueError(f"{name}[{index}] is {number}; it must be in [0, {end - 1}]")
            if name == "before" and index % len(COLUMNS) in (1, 2) and number == late:
                raise ValueError(f"before[{index}] is {number}, the late rank, which does nothing before it arrives")
    first, second = _measured(before), _measured(after)
    precondition = Schedule("reduce_scatter", ranks, chunks, *first, _listed_table, (before,), late=late)
    return Schedule("transfers", ranks, chunks, *second, _listed_table, (after,), precondition, late)


def _measured(numbers: tuple[int, ...]) -> tuple[int, int, int]:
    """Rounds, volume and ports."""
    sends, receives = loads(_listed_table(numbers))
    return *measure(sends, receives), int(max((1, *sends.peers, *receives.peers)))


def _listed_table(numbers: tuple[int, ...]) -> Table:
    table = np.array(numbers, np.int32).reshape(-1, len(COLUMNS))
    return table[np.argsort(table[:, 0], kind="stable")]
