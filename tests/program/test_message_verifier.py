"""The proof of messages accepts compiled schedules, and refuses messages that do not compute their collective."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxcomm import schedules
from jaxcomm.errors import PlanError
from jaxcomm.gpu import nccl
from jaxcomm.program.message_verifier import CollectiveKind, verify_messages
from jaxcomm.program.messages import BUFFER, Add, RankMessages, Receive, Round, Send, compile_messages
from jaxcomm.program.verifier import verify_schedule
from jaxcomm.schedules import Op, Schedule
from jaxcomm.schedules.halves import Half
from tests.program.message_interpreter import Messages, ends_well
from tests.schedules.schedule_cases import CASES, HALVES, by_hand


def of(*ranks: list[Round], slots: int = 1, chunks: int = 1) -> Messages:
    """Messages with these rounds for each rank."""
    return tuple(RankMessages(len(ranks), i, chunks, slots, tuple(rounds)) for i, rounds in enumerate(ranks))


def scatter(ranks: int) -> Messages:
    """A reduce-scatter around a ring: chunk c starts on rank c + 1 and is complete on rank c."""
    rows = [
        (i, (chunk + 1 + i) % ranks, (chunk + 2 + i) % ranks, chunk, Op.REDUCE)
        for i in range(ranks - 1)
        for chunk in range(ranks)
    ]
    return of_rows(rows, ranks)


def gather(ranks: int) -> Messages:
    """An all-gather around a ring: chunk c starts on rank c."""
    rows = [
        (i, (chunk + i) % ranks, (chunk + 1 + i) % ranks, chunk, Op.COPY)
        for i in range(ranks - 1)
        for chunk in range(ranks)
    ]
    return of_rows(rows, ranks)


def of_rows(rows: list[tuple[int, int, int, int, Op]], ranks: int) -> Messages:
    table = np.array(rows, np.int32)
    return compile_messages(Schedule.from_table(table, kind="ring", ranks=ranks, num_chunks=ranks))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(2, 17))
def test_every_schedules_messages_are_proved(ranks: int) -> None:
    for make in CASES.values():
        schedule = make(ranks)
        proof = verify_messages(compile_messages(schedule))
        assert proof.counts["messages"] == sum(len(phase.table()) for phase in schedule.phases)


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 12, 16])
@pytest.mark.parametrize("half", ["reduce_scatter", "all_gather"])
def test_every_half_of_an_all_reduce_is_proved_and_no_other(half: Half, ranks: int) -> None:
    for make in HALVES.values():
        schedule = make(half, ranks)
        verify_schedule(schedule)
        messages = compile_messages(schedule)
        verify_messages(messages, half)
        assert ends_well(messages, half, seed=ranks)
        elsewhere = schedule.table().copy()
        elsewhere[:, 3] = (elsewhere[:, 3] + 1) % schedule.ranks
        for broken in (schedule.table()[1:], elsewhere):
            with pytest.raises(PlanError):
                verify_schedule(by_hand(schedule, broken))


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_other_collectives_are_proved_and_distinguished(ranks: int) -> None:
    found: dict[CollectiveKind, Messages] = {
        "all_reduce": compile_messages(schedules.ring(ranks)),
        "reduce_scatter": scatter(ranks),
        "all_gather": gather(ranks),
    }
    for collective, messages in found.items():
        assert str(verify_messages(messages, collective)).startswith(f"{collective} by messages: {ranks} ranks")
        assert ends_well(messages, collective, seed=0)
    verify_messages(found["all_reduce"], "reduce_scatter")
    for collective in ("all_reduce", "all_gather"):
        with pytest.raises(PlanError):
            verify_messages(found["reduce_scatter"], collective)
    for collective in ("all_reduce", "reduce_scatter"):
        with pytest.raises(PlanError, match="lacks the contribution"):
            verify_messages(found["all_gather"], collective)
    with pytest.raises(PlanError):
        verify_messages(found["all_reduce"], "all_gather")


def test_other_collectives_have_a_chunk_of_each_rank() -> None:
    with pytest.raises(PlanError, match="all_gather of 4 ranks needs 4 chunks; there are 3"):
        verify_messages(compile_messages(schedules.straggler(4, 0, 3)), "all_gather")
    with pytest.raises(ValueError, match="collective is 'gather'; it must be one of all_reduce"):
        verify_messages(gather(2), "gather")  # type: ignore[arg-type]


def swap(peer: int, slot: int = 1) -> Round:
    """A round in which a rank and `peer` send each other their chunk and add the received chunk."""
    return Round([Send(peer, 0)], [Receive(peer, 0, slot)], [Add(0, (BUFFER, slot) if peer else (slot, BUFFER))])


# By fault: the messages, and the beginning of the error text.
BROKEN: dict[str, tuple[Messages, str]] = {
    "none": ((), "there is no rank"),
    "a rank twice": (
        of([swap(1)], [swap(0)])[:1] * 2,
        "list 1 is for rank 0 of 2, with 1 chunks; it must be for rank 1",
    ),
    "a rank is missing": (of([swap(1)], [swap(0)])[:1], "list 0 is for rank 0 of 2"),
    "itself": (
        of([swap(0)], []),
        "rank 0: round 0: the send of chunk 0 to rank 0 is not with one of the 1 other ranks",
    ),
    "no such rank": (of([swap(2)], []), "rank 0: round 0: the send of chunk 0 to rank 2 is not with one of"),
    "no such chunk": (
        of([Round([Send(1, 3)], [], [])], []),
        "rank 0: round 0: the send of chunk 3 to rank 1 is not for one of the 1 chunks",
    ),
    "no such slot": (
        of([], [Round([], [Receive(0, 0, 2)], [])]),
        "rank 1: round 0: the receive of chunk 0 from rank 0 goes to place 2; they are 0 to 1",
    ),
    "no such operand": (
        of([Round([], [], [Add(0, (BUFFER, 2))])], []),
        "rank 0: round 0: the sum of chunk 0 reads [0, 2]; places are 0 to 1",
    ),
    "no operand": (of([Round([], [], [Add(0, ())])], []), "rank 0: round 0: the sum of chunk 0 has no operand"),
    "in place": (
        of([Round([Send(1, 0)], [Receive(1, 0, BUFFER)], [])], [swap(0)]),
        "rank 0: round 0: the receive of chunk 0 from rank 1 overwrites the chunk while it is sent",
    ),
    "two into one slot": (
        of([Round([], [Receive(1, 0, 1), Receive(2, 0, 1)], [])], [], []),
        "rank 0: round 0: the receive of chunk 0 from rank 2 goes to the place of another message of the round",
    ),
    "sent only": (
        of([Round([Send(1, 0)], [], [])], []),
        "rank 0: round 0: the send of chunk 0 to rank 1 has no matching receive",
    ),
    "received only": (
        of([swap(1)], [swap(0), Round([], [Receive(0, 0, 1)], [])]),
        "rank 1: round 1: the receive of chunk 0 from rank 0 has no matching send",
    ),
    "another chunk": (
        of([Round([Send(1, 0)], [], [])], [Round([], [Receive(0, 1, 1)], [])], chunks=2),
        "rank 0: round 0: the send of chunk 0 to rank 1 matches the receive of chunk 1 in round 0 of rank 1",
    ),
    "a deadlock": (
        of(
            [Round([], [Receive(1, 0, 1)], []), Round([Send(1, 0)], [], [])],
            [Round([], [Receive(0, 0, 1)], []), Round([Send(0, 0)], [], [])],
        ),
        "rank 0: round 0: the receive of chunk 0 from rank 1 waits for round 1 of rank 1, which",
    ),
    "an empty slot": (
        of([Round([], [], [Add(0, (BUFFER, 1))])], []),
        "rank 0: round 0: the sum of chunk 0 reads place 1, which holds nothing",
    ),
    "a slot of another chunk": (
        of([Round([Send(1, 0)], [], [])], [Round([], [Receive(0, 0, 1)], [Add(1, (1,))])], chunks=2),
        "rank 1: round 0: the sum of chunk 1 reads place 1, which holds chunk 0",
    ),
    "twice": (
        of([swap(1)], [Round([Send(0, 0)], [Receive(0, 0, 1)], [Add(0, (BUFFER, 1)), Add(0, (BUFFER, 1))])]),
        "rank 1: round 0: the sum of chunk 0 adds the contribution of ranks [0] twice",
    ),
    "not added": (
        of([swap(1)], [Round([Send(0, 0)], [Receive(0, 0, 1)], [])]),
        "rank 1: at the end, after 1 rounds, chunk 0 lacks the contribution of ranks [0]",
    ),
    "another order": (
        of([swap(1)], [Round([Send(0, 0)], [Receive(0, 0, 1)], [Add(0, (BUFFER, 1))])]),
        "rank 1: at the end, after 1 rounds, chunk 0 was added up in another order than on rank 0, so that their bits",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_named_with_its_cure(name: str) -> None:
    messages, problem = BROKEN[name]
    with pytest.raises(PlanError) as caught:
        verify_messages(messages)
    assert str(caught.value).startswith(f"messages: {problem}"), caught.value
    assert "\n  Cure: " in str(caught.value)


def test_what_a_rank_does_not_hold_is_not_sent() -> None:
    early = of([], [Round([Send(0, 0)], [], [])], chunks=2)
    awaited = (early[0]._replace(rounds=(Round([], [Receive(1, 0, BUFFER)], []),)), early[1])
    with pytest.raises(PlanError, match="rank 1: round 0: the send of chunk 0 to rank 0 has nothing to send"):
        verify_messages(awaited, "all_gather")


def test_what_the_other_collectives_leave_is_exact() -> None:
    added = [Round(r.sends, r.receives, [Add(0, (BUFFER,))] if i else []) for i, r in enumerate(gather(2)[0].rounds)]
    assert not added[0].adds
    verify_messages((gather(2)[0]._replace(rounds=tuple(added)), gather(2)[1]), "all_gather")
    summed = of(*[[Round([Send(1 - r, 0)], [Receive(1 - r, 0, 1)], [Add(0, (BUFFER, 1))])] for r in range(2)], chunks=2)
    with pytest.raises(PlanError, match="to rank 0 has nothing to send"):
        verify_messages(summed, "all_gather")
    with pytest.raises(PlanError, match=r"rank 1: at the end, after 1 rounds, chunk 1 lacks .* of ranks \[0\]"):
        verify_messages(summed, "reduce_scatter")


def test_messages_that_do_not_compute_the_sum_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, _ = BROKEN["another order"]
    monkeypatch.setattr(nccl, "compile_messages", lambda schedule: broken)
    with pytest.raises(PlanError, match="was added up in another order than on rank 0"):
        nccl._registered.__wrapped__((schedules.ring(2),))


@pytest.mark.parametrize("name", CASES)
def test_any_order_of_what_can_run_gives_the_sum(name: str) -> None:
    for ranks in (2, 3, 6):
        messages = compile_messages(CASES[name](ranks))
        assert all(ends_well(messages, "all_reduce", seed) for seed in range(2))


@settings(deadline=None, max_examples=400)
@given(st.data())
def test_broken_messages_are_refused_or_compute_the_sum_all_the_same(data: st.DataObject) -> None:
    messages = compile_messages(CASES[data.draw(st.sampled_from(sorted(CASES)))](data.draw(st.integers(2, 5))))
    for _ in range(data.draw(st.integers(1, 3))):
        messages = data.draw(st.sampled_from(MUTATIONS))(messages, data.draw)
    try:
        verify_messages(messages)
    except PlanError as error:
        assert "\n  Cure: " in str(error)
        return
    assert all(ends_well(messages, "all_reduce", seed) for seed in range(3))


Draw = Callable[[st.SearchStrategy[int]], int]


def _changed(messages: Messages, draw: Draw, change: Callable[[list], None]) -> Messages:
    """The messages with one list of a random rank and round changed, unless this list is empty."""
    rank = draw(st.integers(0, len(messages) - 1))
    rounds = list(messages[rank].rounds)
    index = draw(st.integers(0, len(rounds) - 1))
    lists = [list(entries) for entries in rounds[index]]
    chosen = lists[draw(st.integers(0, 2))]
    if chosen:
        change(chosen)
    rounds[index] = Round(*lists)
    return (*messages[:rank], messages[rank]._replace(rounds=tuple(rounds)), *messages[rank + 1 :])


def drop(messages: Messages, draw: Draw) -> Messages:
    return _changed(messages, draw, lambda entries: entries.pop(draw(st.integers(0, len(entries) - 1))))


def duplicate(messages: Messages, draw: Draw) -> Messages:
    return _changed(messages, draw, lambda entries: entries.append(entries[draw(st.integers(0, len(entries) - 1))]))


def exchange(messages: Messages, draw: Draw) -> Messages:
    """Swaps two entries of a list."""

    def change(entries: list) -> None:
        i, j = draw(st.integers(0, len(entries) - 1)), draw(st.integers(0, len(entries) - 1))
        entries[i], entries[j] = entries[j], entries[i]

    return _changed(messages, draw, change)


def redirect(messages: Messages, draw: Draw) -> Messages:
    """Changes one number of an entry: its peer, chunk, place or operand."""

    def change(entries: list) -> None:
        at = draw(st.integers(0, len(entries) - 1))
        field = draw(st.integers(0, len(entries[at]) - 1))
        fields = list(entries[at])
        if isinstance(fields[field], tuple):
            operands = list(fields[field])
            operands[draw(st.integers(0, len(operands) - 1))] = draw(st.integers(0, 3))
            fields[field] = tuple(draw(st.permutations(operands)))
        else:
            fields[field] = draw(st.integers(0, 4))
        entries[at] = type(entries[at])(*fields)

    return _changed(messages, draw, change)


def exchange_rounds(messages: Messages, draw: Draw) -> Messages:
    """Swaps two rounds of a rank."""
    rank = draw(st.integers(0, len(messages) - 1))
    rounds = list(messages[rank].rounds)
    i, j = draw(st.integers(0, len(rounds) - 1)), draw(st.integers(0, len(rounds) - 1))
    rounds[i], rounds[j] = rounds[j], rounds[i]
    return (*messages[:rank], messages[rank]._replace(rounds=tuple(rounds)), *messages[rank + 1 :])


def drop_message(messages: Messages, draw: Draw) -> Messages:
    """Removes the first message from one rank to another, on both ranks."""
    src = draw(st.integers(0, len(messages) - 1))
    dst = (src + draw(st.integers(1, len(messages) - 1))) % len(messages)
    sent, received = _without(messages[src], 0, dst), _without(messages[dst], 1, src)
    return tuple(sent if each.rank == src else received if each.rank == dst else each for each in messages)


def _without(messages: RankMessages, kind: int, peer: int) -> RankMessages:
    rounds = [[list(entries) for entries in round_] for round_ in messages.rounds]
    found = next(((lists[kind], e) for lists in rounds for e in lists[kind] if e.peer == peer), None)
    if found:
        found[0].remove(found[1])
    return messages._replace(rounds=tuple(Round(*lists) for lists in rounds))


MUTATIONS = [drop, duplicate, exchange, redirect, exchange_rounds, drop_message]
