"""A run of a schedule, message by message: when each rank sends, receives and is done.

Every rank works through its own rounds in order: it begins one when its messages of the rounds before are through, and
nobody waits for a rank that it has nothing to do with. Ranks may arrive at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxcomm.schedules import Schedule

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Messages:
    """The messages of one phase, one array element each: chunks that one rank sends another in one round, and when."""

    round: Ints
    src: Ints
    dst: Ints
    chunks: Ints
    start_s: Floats
    end_s: Floats


@dataclass(frozen=True)
class Run:
    """What happened: `finish_s[r]` is when rank r was done; `before` is what came first, or None."""

    finish_s: Floats
    before: Run | None
    messages: Messages


def run(schedule: Schedule, nbytes: int, alpha: float, beta: float, arrivals: Sequence[float] | None = None) -> Run:
    """Runs a schedule and its precondition on ports that carry one byte per β seconds in each direction.

    A message of b bytes occupies its sender's send port and its receiver's receive port for bβ seconds and is there α
    seconds after that; it starts when both ranks are in that round and both ports are free.

    Args:
      schedule: any schedule; unrolled, so at 1024 ranks mind its size.
      nbytes: size of the buffer.
      alpha: seconds per message.
      beta: seconds per byte.
      arrivals: when each rank arrives, in seconds; all at 0 by default.

    Returns:
      The times of all messages, and when each rank was done.
    """
    ready: Floats = np.zeros(schedule.ranks) if arrivals is None else np.array(arrivals, dtype=np.float64)
    if ready.shape != (schedule.ranks,):
        raise ValueError(f"arrivals has {len(ready)} times for {schedule.ranks} ranks; one per rank is needed")
    before = None
    for phase in schedule.phases:
        ready, messages = _phase(phase, nbytes, alpha, beta, ready)
        before = Run(ready, before, messages)
    assert before is not None  # the schedule itself is its last phase
    return before


def _phase(schedule: Schedule, nbytes: int, alpha: float, beta: float, ready: Floats) -> tuple[Floats, Messages]:
    round_, src, dst, chunks = _messages(schedule)
    start_s, end_s = np.zeros(len(src)), np.zeros(len(src))
    occupied = chunks * (nbytes / schedule.num_chunks * beta)
    # In one round a rank serves its peers by distance, so that no two of them wait for the same third one. No port is
    # used twice in such a turn, which makes a turn one array operation.
    distance = (dst - src) % schedule.ranks if schedule.ports > 1 else np.zeros_like(src)
    order = np.lexsort((distance, round_))
    turns = np.flatnonzero(np.diff(round_[order], prepend=-1) | np.diff(distance[order], prepend=-1))
    current = -1
    done, send_free, receive_free = ready.copy(), ready, ready
    for turn in np.split(order, turns[1:]) if len(order) else []:
        if round_[turn[0]] != current:
            current = round_[turn[0]]
            ready = done.copy()
            send_free, receive_free = ready.copy(), ready.copy()
        sender, receiver = src[turn], dst[turn]
        start = np.maximum(send_free[sender], receive_free[receiver])
        free = start + occupied[turn]
        send_free[sender] = receive_free[receiver] = free
        start_s[turn], end_s[turn] = start, free + alpha
        done[sender] = np.maximum(done[sender], end_s[turn])
        done[receiver] = np.maximum(done[receiver], end_s[turn])
    return done, Messages(round_, src, dst, chunks, start_s, end_s)


def _messages(schedule: Schedule) -> tuple[Ints, Ints, Ints, Ints]:
    """Round, sender, receiver and number of chunks: what one rank sends another in one round goes as one message."""
    n = schedule.ranks
    table = schedule.table().astype(np.int64)
    keys, chunks = np.unique((table[:, 0] * n + table[:, 1]) * n + table[:, 2], return_counts=True)
    return keys // (n * n), keys // n % n, keys % n, chunks
