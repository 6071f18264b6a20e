"""Proves permutes by reading their tables back into messages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from jaxcomm.program.message_verifier import verify_messages
from jaxcomm.program.messages import BUFFER, Add, RankMessages, Receive, Round, Send, scratch_slots
from jaxcomm.program.permutes import ADD, NOTHING, Loop, PermuteRound, Permutes
from jaxcomm.program.verifier import Proof
from jaxcomm.schedules.schedule import CollectiveKind


def verify_permutes(permutes: Permutes, collective: CollectiveKind = "all_reduce") -> Proof:
    """Proves that these permutes give the collective's result, with the same bits on all ranks.

    The tables are read back into the sends, receives and sums of every rank, which `verify_messages` proves.

    Raises:
      PlanError: the mistake, with the rank, its round and the chunk.
    """
    rounds = [round_ for loop in permutes.loops for round_ in _unrolled(loop, permutes)]
    lists = [[together[rank] for together in rounds] for rank in range(permutes.ranks)]
    messages = tuple(
        RankMessages(permutes.ranks, rank, permutes.chunks, scratch_slots(own), tuple(own))
        for rank, own in enumerate(lists)
    )
    proof = verify_messages(messages, collective)
    counts = {**proof.counts, "permutes": permutes.length}
    return Proof(f"{collective} by permutes", permutes.ranks, permutes.chunks, counts, proof.method)


def _unrolled(loop: Loop, permutes: Permutes) -> Iterator[list[Round]]:
    """The rounds of a loop as every rank's messages."""
    for iteration in range(loop.iterations):
        for round_ in loop.rounds:
            yield [_messages(round_, iteration, rank, permutes.slots) for rank in range(permutes.ranks)]


def _messages(round_: PermuteRound, iteration: int, rank: int, slots: int) -> Round:
    """A rank's part in a round.

    An arriving chunk takes a slot above `slots` in two cases: the rank adds the chunk at once, or the rank sends the
    old content of this chunk in the same round.
    """
    found = Round([], [], [])
    aside = itertools.count(slots + 1)
    for permute in round_.permutes:
        sources = {dst: src for src, dst in permute.pairs}
        targets = dict(permute.pairs)
        for chunk in permute.sends[iteration, rank].tolist():
            if chunk != NOTHING:
                found.sends.append(Send(targets.get(rank, rank), chunk))
        sent = {send.chunk for send in found.sends}
        for chunk, place in zip(*(table[iteration, rank].tolist() for table in permute[2:]), strict=True):
            if chunk == NOTHING:
                continue
            if place == ADD or (place == BUFFER and chunk in sent):
                slot = next(aside)
                both = (BUFFER, slot) if rank < sources.get(rank, rank) else (slot, BUFFER)
                found.adds.append(Add(chunk, (slot,) if place == BUFFER else both))
                place = slot
            found.receives.append(Receive(sources.get(rank, rank), chunk, place))
    for chunks, places in round_.additions:
        for chunk, operands in zip(chunks[iteration, rank].tolist(), places[iteration, rank].tolist(), strict=True):
            if chunk != NOTHING:
                found.adds.append(Add(chunk, tuple(operands)))
    return found
