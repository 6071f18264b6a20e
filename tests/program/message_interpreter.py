"""Runs messages on numbers, in a random order of the operations that can run, without the package's executors."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from jaxcomm.program.message_verifier import CollectiveKind
from jaxcomm.program.messages import BUFFER, Add, RankMessages, Receive, Send
from tests.schedules.schedule_cases import Numbers

Messages = tuple[RankMessages, ...]


def ends_well(messages: Messages, collective: CollectiveKind, seed: int) -> bool:
    """Whether a random order of execution gives exact sums of integers, and floats with the same bits on all ranks."""
    ranks, chunks = len(messages), messages[0].chunks
    rng = np.random.default_rng(seed)
    whole = rng.integers(-(2**50), 2**50, (ranks, chunks), dtype=np.int64)
    floats = rng.standard_normal((ranks, chunks)).astype(np.float32) * 2.0 ** rng.integers(-9, 9, (ranks, chunks))
    if collective == "all_gather":
        whole, floats = (np.where(np.eye(ranks, dtype=bool), each, 0) for each in (whole, floats))
    sums = execute(messages, whole, seed)
    if collective == "reduce_scatter":
        return bool((np.diagonal(sums) == whole.sum(axis=0)).all())
    bits = execute(messages, floats.astype(np.float32), seed)
    return bool((sums == whole.sum(axis=0)).all() and (bits == bits[0]).all())


def execute(messages: Messages, buffers: Numbers, seed: int) -> Numbers:
    """The ranks' buffers at the end, if operations that can run are executed one at a time in a random order.

    Two operations conflict if one writes memory that the other reads or writes. An operation can run when all earlier
    operations of its rank that conflict with it are done. A message is transferred when its send and its receive can
    run, and no earlier message between the two ranks is left.
    """
    order, held = random.Random(seed), buffers.copy()
    slots: dict[tuple[int, int], object] = {}
    waiting = [[(entry, *_memory(entry)) for entry in _operations(each)] for each in messages]
    runnable = [list(_first(entries)) for entries in waiting]
    while any(waiting):
        receives = {(e.peer, rank): e for rank, es in enumerate(runnable) for e in es if isinstance(e, Receive)}
        moves: list[tuple] = [(rank, e) for rank, es in enumerate(runnable) for e in es if isinstance(e, Add)]
        moves += [
            (rank, e.peer, e, receives[rank, e.peer])
            for rank, es in enumerate(runnable)
            for e in es
            if isinstance(e, Send) and (rank, e.peer) in receives
        ]
        assert moves, "deadlock"
        match order.choice(moves):
            case (rank, Add(chunk, places) as add):
                terms = [held[rank, chunk] if place == BUFFER else slots[rank, place] for place in places]
                total = terms[0]
                for term in terms[1:]:
                    total = total + term
                held[rank, chunk] = total
                _remove(waiting[rank], add)
                runnable[rank] = list(_first(waiting[rank]))
            case (src, dst, Send() as send, Receive() as receive):
                assert send.chunk == receive.chunk
                if receive.place == BUFFER:
                    held[dst, receive.chunk] = held[src, send.chunk]
                else:
                    slots[dst, receive.place] = held[src, send.chunk]
                _remove(waiting[src], send)
                _remove(waiting[dst], receive)
                for rank in (src, dst):
                    runnable[rank] = list(_first(waiting[rank]))
    return held


Entry = Send | Receive | Add
Place = tuple[int, int]  # a place, and the chunk if the place is the buffer
Waiting = list[tuple[Entry, set[Place], set[Place]]]  # operations with the places that they read and write


def _operations(messages: RankMessages) -> Iterator[Entry]:
    for sends, receives, adds in messages.rounds:
        yield from (*sends, *receives, *adds)


def _memory(entry: Entry) -> tuple[set[Place], set[Place]]:
    """The places that an operation reads, and the places that it writes."""

    def at(place: int) -> Place:
        return place, entry.chunk if place == BUFFER else 0

    match entry:
        case Send():
            return {at(BUFFER)}, set()
        case Receive(_, _, place):
            return set(), {at(place)}
        case Add(_, places):
            return {at(place) for place in places}, {at(BUFFER)}


def _first(entries: Waiting) -> Iterator[Entry]:
    """The operations that can run. A send or a receive can run only if it is the next one with its peer."""
    read: set[Place] = set()
    written: set[Place] = set()
    listed: set[tuple[type, int]] = set()
    for entry, reads, writes in entries:
        channel = (type(entry), -1 if isinstance(entry, Add) else entry.peer)
        free = written.isdisjoint(reads) and written.isdisjoint(writes) and read.isdisjoint(writes)
        if free and (isinstance(entry, Add) or channel not in listed):
            yield entry
        listed.add(channel)
        read |= reads
        written |= writes


def _remove(entries: Waiting, done: Entry) -> None:
    del entries[next(i for i, (entry, *_) in enumerate(entries) if entry is done)]
