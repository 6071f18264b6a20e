"""A chain: an all-reduce that late ranks join one after another, as they arrive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxcomm.schedules.find_template import template as find_template
from jaxcomm.schedules.one_late_rank import straggler_table
from jaxcomm.schedules.reduce_scatter import reduce_scatter_to
from jaxcomm.schedules.schedule import Op, Schedule, Table, check_chunks, join, rows
from jaxcomm.schedules.several_late_ranks import check_late
from jaxcomm.schedules.template import Template


def chain(ranks: int, late: Sequence[int], chunks: int, template: Template | None = None) -> Schedule:
    """AllReduce for late ranks that arrive at different times.

    The owner of a chunk is the rank that has the chunk's partial sum. Each late rank but the last becomes an owner,
    too: it takes over some chunks of every owner, so that all owners have equal shares, and sends the owners its part
    of all other chunks. Joining takes a late rank less time than sending one buffer through a port. When the last rank
    arrives, all other ranks have reduce-scattered, and the schedule goes on as `straggler`.

    The second-to-last late rank sends everything except its own share. Sending these chunks takes the same time as a
    ReduceScatter of all ranks but the last. In `straggler` all ranks but the last wait for each other and then run such
    a ReduceScatter. So, counted from the last arrival, a chain is no faster than `straggler`. But in a chain the early
    ranks finish their own ReduceScatter earlier, and their ports are mostly free while late ranks join.

    Args:
      ranks: number of ranks n, at least 2.
      late: the late ranks in order of arrival, 1 to n − 1 of them.
      chunks: pieces k of the buffer, at least 1.
      template: the same argument as in `straggler`.

    Returns:
      A schedule whose `precondition` is the schedule by which the second-to-last late rank joins. That schedule has a
      precondition of its own, by which the late rank before that one joins, and so on. The first of these schedules is
      the ReduceScatter of the ranks that are not late.

    Raises:
      ValueError: a rank out of range or named twice, no rank or every rank late, no chunk, or a template for another
        number of ranks.
      PlanError: the template needs OR-Tools, which is not installed.

    Example:
      >>> schedule = jaxcomm.schedules.chain(8, late=[6, 3], chunks=4)
      >>> schedule.late, schedule.precondition.late  # rank 3 is the last to arrive
      (3, 6)
    """
    check_late(ranks, late)
    check_chunks(chunks)
    if template is not None and template.ranks != ranks:
        raise ValueError(f"the template is for {template.ranks} ranks, the schedule for {ranks}")
    template = None if chunks == 1 else template or find_template(ranks)
    order, last = tuple(late), late[-1]
    owners = _owners(ranks, order)
    early = sorted({*range(ranks)} - {*order})
    first = tuple(early.index(rank) for rank in owners[0])
    before = reduce_scatter_to(ranks, tuple(sorted(order)), first, chunks)
    counts = np.stack([np.bincount(np.resize(row, chunks), minlength=ranks) for row in owners])
    for index, rank in enumerate(order[:-1]):
        late_ranks = tuple(sorted(order[index:]))
        # In each round the late rank sends one owner its part of the chunks that the owner keeps, and gets the partial
        # sums of the owner's other chunks.
        rounds = int((counts[index] > 0).sum())
        volume = _volume(owners[index], owners[index + 1], rank, chunks)
        more = tuple(other for other in late_ranks if other != rank)
        before = Schedule(
            "join",
            ranks,
            chunks,
            rounds,
            volume,
            1,
            _join_table,
            (ranks, order, index, chunks),
            before,
            rank,
            None,
            more,
        )
    rounds = chunks - 1 + (ranks - 1).bit_length()
    parameters = (ranks, order, chunks, template)
    return Schedule("chain", ranks, chunks, rounds, rounds, 1, _table, parameters, before, last)


def _table(ranks: int, late: tuple[int, ...], chunks: int, template: Template | None) -> Table:
    return straggler_table(ranks, late[-1], chunks, template)


def _owners(ranks: int, late: tuple[int, ...]) -> list[tuple[int, ...]]:
    """For each late rank, the owners of the first n − 1 chunks at its arrival. Later chunks repeat these owners."""
    owners = [tuple(rank for rank in range(ranks) if rank != late[-1])]
    early = sorted({*range(ranks)} - {*late})
    for index in range(len(late) - 2, -1, -1):
        after, there = owners[0], sorted([*early, *late[:index]])
        next_owner = iter(there * ranks)
        owners.insert(0, tuple(next(next_owner) if owner == late[index] else owner for owner in after))
    return owners


def _join_table(ranks: int, late: tuple[int, ...], index: int, chunks: int) -> Table:
    owners, rank = _owners(ranks, late), late[index]
    old, new = (np.resize(row, chunks) for row in owners[index : index + 2])
    round_ = np.unique(old, return_inverse=True)[1]
    given = new == rank
    chunk = np.arange(chunks)
    return join(
        [
            rows(round_[~given], rank, old[~given], chunk[~given], Op.REDUCE),
            rows(round_[given], old[given], rank, chunk[given], Op.REDUCE),
        ]
    )


def _volume(old: Sequence[int], new: Sequence[int], rank: int, chunks: int) -> int:
    """The sum, over the owners, of the chunks that `rank` sends to the owner or gets from it, whichever are more."""
    before, given = np.resize(old, chunks), np.resize(new, chunks) == rank
    kept, got = (np.bincount(before[which]) for which in (~given, given))
    width = max(len(kept), len(got))
    return int(np.maximum(np.pad(kept, (0, width - len(kept))), np.pad(got, (0, width - len(got)))).sum())
