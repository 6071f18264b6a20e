"""Each executor's work for a schedule: the terms whose unit costs `executor_costs` fits to timed schedules.

A term that does not affect the timed schedules gets the unit cost 0. The limits in bytes are the executor's, from
cc/executor: local_executor.cc, local_site.cc and message_graph.h.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.profile.cluster import Cluster
from jaxcomm.profile.timed_schedules import TimedExecutor
from jaxcomm.program.lowering import lower
from jaxcomm.schedules import Schedule
from jaxcomm.simulate import clock, closed_form
from jaxcomm.simulate.incast import link_of

TINY_WORK: Final = 1 << 20  # a call that reads and stores at most this many bytes runs on its last rank alone
STREAM_BYTES: Final = 64 << 20  # with at least this many bytes in all ranks' buffers, stores bypass the caches
NEAR_BYTES: Final = (4 << 20, 8 << 20, 16 << 20, 32 << 20)  # candidates for `near` in `_memory`
SEGMENT_BYTES: Final = 256 << 10  # longest segment of a message within a host

Floats = NDArray[np.float64]
Work = Callable[[Schedule, int], Floats]  # returns [2, terms]: the work before the late ranks' arrival, and after it


def work_of(executor: TimedExecutor, links: Cluster, late: int) -> list[Work]:
    """Alternative models of an executor's work. The caller uses the model that fits the timed schedules best."""
    if links.topology is not None or max(links.nics, default=1.0) > 1:  # XLA's collectives, on links that differ
        return [lambda schedule, nbytes: np.array(link_seconds(schedule, nbytes, links, (late,)))[:, None]]
    if executor == "memory":
        return [partial(_memory, near=near) for near in NEAR_BYTES]
    return [_messages]


def _memory(schedule: Schedule, nbytes: int, near: int) -> Floats:
    """The work of threads that read and store in memory that all threads share.

    The terms are the call, the waking of workers, the operations, and two byte counts for each level that may hold the
    buffers. The levels are the nearer caches (if all ranks' buffers together have at most `near` bytes), the farther
    caches, and memory. A store to a cache first fetches the line, so for caches the counts are bytes touched (read or
    stored) and bytes stored. Stores to memory fetch nothing, so for memory the counts are bytes read and bytes stored.
    """
    total, is_tiny = schedule.ranks * nbytes, _counts(schedule)[:, 1:].sum() * nbytes / schedule.num_chunks <= TINY_WORK
    workers = 1 if is_tiny else min(schedule.ranks, os.cpu_count() or 1)
    level = 2 if total >= STREAM_BYTES else int(total > near)
    found = np.zeros((2, 3 + 3 * 2))
    found[1, :2] = 1, not is_tiny
    for phase, (ops, reads, stores, touched) in enumerate(_counts(schedule)):
        found[phase, 2] = ops / workers
        moved = (reads if level == 2 else touched, stores)
        found[phase, 3 + 2 * level : 5 + 2 * level] = np.array(moved) * nbytes / schedule.num_chunks / workers
    return found


@lru_cache(maxsize=512)
def _counts(schedule: Schedule) -> Floats:
    """Returns [2, 4]: operations, chunks read, chunks stored and chunks touched, before the arrival and after it."""
    steps = lower(schedule)
    before = len(lower(schedule.precondition)) if schedule.precondition else 0
    rows = [(1.0, len(step.reads), len(step.writes), len({*step.reads, *step.writes})) for step in steps]
    return np.array([np.sum(part, axis=0) if part else np.zeros(4) for part in (rows[:before], rows[before:])])


def _messages(schedule: Schedule, nbytes: int) -> Floats:
    """The work of processes that send each other messages, within a host or over links with one rate.

    The terms are the call, rounds, messages, segments, bytes of the busiest port, and bytes of all ranks. Messages and
    segments are counted over all ranks, because the ranks share the host's processors. Small and large buffers have
    separate terms for bytes.
    """
    chunk, found = nbytes / schedule.num_chunks, np.zeros((2, 8))
    found[1, 0] = 1
    for index, phase in enumerate(schedule.phases):
        messages = _message_count(phase)
        port = phase.volume * chunk
        moved = messages * chunk
        large = schedule.ranks * nbytes >= STREAM_BYTES // 4
        terms: list[float] = [phase.num_rounds, messages, messages * math.ceil(chunk / SEGMENT_BYTES)]
        terms += [0.0, 0.0, port, moved] if large else [port, moved, 0.0, 0.0]
        found[int(index == len(schedule.phases) - 1), 1:] += terms
    return found


@lru_cache(maxsize=512)
def _message_count(phase: Schedule) -> int:
    return len(phase.table())


def link_seconds(schedule: Schedule, nbytes: int, links: Cluster, late: tuple[int, ...]) -> tuple[float, float]:
    """Seconds before the late ranks' arrival and after it, predicted by α and β.

    Args:
      schedule: any schedule.
      nbytes: size of the buffer.
      links: the links; where links differ, messages are timed one by one.
      late: the late ranks, used only if links differ and the schedule names no late rank.
    """
    alpha, beta, topology = link_of(schedule, nbytes, links)
    if topology is None:
        return closed_form.phases(schedule, nbytes, alpha, beta)
    comers = schedule.late_ranks or frozenset(late)
    left = clock.left_seconds(schedule, nbytes, alpha, beta, topology, (comers,) if comers else ())
    return left[0] - left[-1], left[-1]
