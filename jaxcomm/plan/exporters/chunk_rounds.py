"""The exporters' common parts: a schedule's messages in the order in which thread blocks process them, and limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

import numpy as np

from jaxcomm.errors import PlanError
from jaxcomm.schedules import Op, Schedule
from jaxcomm.schedules.schedule import Table, join, rows

THREAD_BLOCKS: Final = 108  # one block per multiprocessor of an A100, because blocks that wait must all run at once
LANES: Final = 32  # target number of sending thread blocks of a GPU; equal to NCCL's number of channels
PART: Final = 16 * 1024  # minimum bytes per thread block if several share a chunk; 1024 threads move 16 KiB at once

FEWER_CHUNKS: Final = "plan with fewer chunks, or export another byte range (--size)"
FEWER_RANKS: Final = "use a schedule with fewer peers per rank, such as a ring, or fewer ranks"

Built = TypeVar("Built")


class Message(NamedTuple):
    """A chunk that `src` sends to `dst`. `dst` adds this chunk to its own chunk, or overwrites its own chunk."""

    src: int
    dst: int
    chunk: int
    op: Op


# A round's messages in order of chunks. All messages of a chunk are sent before the first of them is received, because
# they carry the chunk's old values.
Round = tuple[Message, ...]


class Exported(NamedTuple):
    """A file's text, and the sizes that the file is for. A `max_bytes` of None means no limit."""

    text: str
    min_bytes: int
    max_bytes: int | None


class TooMuchError(PlanError):
    """A value exceeds its limit.

    `factor` is the value divided by the limit; None if dividing the chunks into more groups does not lower the value.
    """

    def __init__(self, message: str, factor: float | None) -> None:
        super().__init__(message)
        self.factor = factor


def phases(schedule: Schedule, around: bool = False) -> list[list[Round]]:
    """The messages of every precondition, then the messages of the schedule, in order of rounds and chunks.

    If every thread block keeps this order, there is no deadlock, even if a link holds only one message: the first
    unfinished step waits only for earlier steps, which have finished.

    Args:
      schedule: any schedule.
      around: whether to replace stars by rings in preconditions. In a star a chunk's owner receives the chunk from all
        other ranks; in a ring the chunk goes around all ranks to the owner. Stars and rings take equal time and move
        equal numbers of bytes. In a ring each rank has only two peers, but the ranks' values are added in another
        order.
    """
    before, after = schedule.phases[:-1], schedule.table()
    tables = [_around(phase) if around else phase.table() for phase in before]
    return [list(_rounds(table)) for table in (*tables, after)]


def _around(phase: Schedule) -> Table:
    """The phase's table with rings in place of stars (see `phases`)."""
    table = phase.table()
    there = np.array([rank for rank in range(phase.ranks) if rank not in phase.late_ranks])
    rings, rest = [], []
    for chunk in np.unique(table[:, 3]):
        own = table[table[:, 3] == chunk]
        owner = own[0, 2]
        if (own[:, 4] == Op.REDUCE).all() and sorted((*own[:, 1], *own[:1, 2])) == there.tolist():
            hop = np.arange(len(there) - 1)
            place = np.searchsorted(there, owner) + 1 + hop
            src, dst = there[place % len(there)], there[(place + 1) % len(there)]
            rings.append(rows(hop, src, dst, chunk, Op.REDUCE))
        else:
            rest.append(own)
    return join([*rings, *rest])


def fitting(schedule: Schedule, build: Callable[[list[list[Round]]], Built]) -> Built:
    """The result of `build` for the schedule's phases, with rings in place of stars if stars exceed a limit.

    Raises:
      PlanError: `build` fails with rings too, or the schedule has no precondition.
    """
    try:
        return build(phases(schedule))
    except TooMuchError:
        if len(schedule.phases) == 1:
            raise
        return build(phases(schedule, around=True))


def _rounds(table: Table) -> Iterator[Round]:
    ordered = table[np.lexsort((table[:, 3], table[:, 0]))].tolist()
    for _, together in groupby(ordered, key=itemgetter(0)):
        yield tuple(Message(src, dst, chunk, Op(op)) for _, src, dst, chunk, op in together)


def split(first: int, last: int, build: Callable[[int], Built]) -> Built:
    """The result of `build` for the first of several numbers of chunk groups with which `build` meets the limits.

    The numbers ascend from `first` to `last`.

    Raises:
      PlanError: `build` fails with `last` groups, or exceeds a limit that more groups do not help to meet.
    """
    groups = first
    while groups < last:
        try:
            return build(groups)
        except TooMuchError as error:
            if error.factor is None:
                raise
            groups = min(last, max(groups + 1, math.ceil(groups * error.factor)))
    return build(last)


def check(quantity: str, value: int, limit: int, allows: str, cure: str, *, split: bool = True) -> None:
    """Raises TooMuchError if a value exceeds its limit; `split` says whether more groups of chunks lower the value."""
    if value > limit:
        message = f"{quantity} is {value}; {allows} at most {limit}.\n  Cure: {cure}."
        raise TooMuchError(message, value / limit if split else None)
