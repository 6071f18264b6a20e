"""Schedules for a late rank, given as lists of transfers, for networks that no schedule in closed form fits well."""

from __future__ import annotations

import functools

import numpy as np

from jaxcomm.schedules.schedule import Op, Schedule, Table, check_chunks, check_rank, check_ranks, loads, measure

COLUMNS = ("round", "sender", "receiver", "chunk", "op")  # names of the numbers that describe a transfer


@functools.lru_cache(maxsize=16)  # many entries of a plan have the same schedule
def listed(ranks: int, late: int, chunks: int, before: tuple[int, ...], after: tuple[int, ...]) -> Schedule:
    """AllReduce by two lists of transfers: one for the time before a late rank arrives, one for the time after.

    `jaxcomm.plan.verify` proves whether the transfers give every rank every sum.

    Args:
      ranks: number of ranks n, at least 2.
      late: the late rank, in [0, n).
      chunks: pieces k of the buffer, at least 1.
      before: round, sender, receiver, chunk and op (an `Op`) of every transfer before the arrival, in one flat
        sequence. The late rank is neither sender nor receiver.
      after: the same five numbers of every transfer after the arrival.

    Returns:
      A schedule whose `precondition` consists of the transfers `before`.

    Raises:
      ValueError: no chunk, a number out of range, the late rank in `before`, or an incomplete transfer.

    Example:
      >>> jaxcomm.schedules.listed(2, late=1, chunks=1, before=(), after=(0, 0, 1, 0, 0, 0, 1, 0, 0, 0)).num_rounds
      1
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
                raise ValueError(f"before[{index}] is {number}, the late rank, which takes no part before it arrives")
    first, second = _measured(before), _measured(after)
    precondition = Schedule("reduce_scatter", ranks, chunks, *first, _listed_table, (before,), late=late)
    return Schedule("transfers", ranks, chunks, *second, _listed_table, (after,), precondition, late)


def _measured(numbers: tuple[int, ...]) -> tuple[int, int, int]:
    """The number of rounds, the volume and the ports of the transfers, as in `Schedule`."""
    sends, receives = loads(_listed_table(numbers))
    return *measure(sends, receives), int(max((1, *sends.peers, *receives.peers)))


def _listed_table(numbers: tuple[int, ...]) -> Table:
    table = np.array(numbers, np.int32).reshape(-1, len(COLUMNS))
    return table[np.argsort(table[:, 0], kind="stable")]
