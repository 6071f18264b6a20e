"""Shared by the exporters: a schedule's messages in the order in which thread blocks take them, and limits."""

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

THREAD_BLOCKS: Final = 108  # they wait for each other, so all must run at once: one per multiprocessor of an A100
LANES: Final = 32  # thread blocks of a GPU that send, if its limits allow: as many as NCCL has channels
PART: Final = 16 * 1024  # bytes of a chunk from which on several thread blocks gain: what 1024 threads move at once

FEWER_CHUNKS: Final = "plan with fewer chunks, or export another byte range (--size)"
FEWER_RANKS: Final = "use a schedule with fewer peers per rank, such as a ring, or fewer ranks"

Built = TypeVar("Built")


class Message(NamedTuple):
    """A chunk on its way from `src` to `dst`, which adds it to its own chunk or replaces that."""

    src: int
    dst: int
    chunk: int
    op: Op


Round = tuple[Message, ...]  # by chunk; all of a chunk are sent before any is taken in, as they carry the old values


class Exported(NamedTuple):
    """A file's text, and the sizes that it is for; `max_bytes` None means no limit."""

    text: str
    min_bytes: int
    max_bytes: int | None


class TooMuchError(PlanError):
    """A limit that is not kept, by `factor` if that gets less when the chunks are dealt out to more groups."""

    def __init__(self, message: str, factor: float | None) -> None:
        super().__init__(message)
        self.factor = factor


def phases(schedule: Schedule, around: bool = False) -> list[list[Round]]:
    """The messages of every precondition, and last those of the schedule, by round and chunk.

    When every thread block keeps this order, none waits for ever, even if a link holds only one message: what the first
    unfinished step waits for always comes earlier in the order.

    Args:
      schedule: any schedule.
      around: a precondition in which the owner of a chunk receives from all others sends the chunk around a ring that
        ends there, as long and with as many bytes: so every rank has two peers, but a sum adds in another order.
    """
    before, after = schedule.phases[:-1], schedule.table()
    tables = [_around(phase) if around else phase.table() for phase in before]
    return [list(_rounds(table)) for table in (*tables, after)]


def _around(phase: Schedule) -> Table:
    """The table with rings for stars: where a chunk is only added, by the ranks that take part, to one of them."""
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
    """The result of `build` for the schedule's phases, with rings for preconditions if the limits allow no stars.

    Raises:
      PlanError: it can make nothing of either; the message is about the latter.
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
    """The result of `build` for about the fewest groups of chunks in [first, last] that keep the limits.

    Raises:
      PlanError: no attempt succeeds; the message is that of the last one.
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
    """Raises TooMuchError if a value is beyond its limit; `split` says whether it gets less with more groups."""
    if value > limit:
        message = f"{quantity} is {value}; {allows} at most {limit}.\n  Cure: {cure}."
        raise TooMuchError(message, value / limit if split else None)
