"""The verifier accepts schedules that give the sum and refuses all others, however they were broken."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxcomm import schedules
from jaxcomm.errors import PlanError
from jaxcomm.program.verifier import verify_schedule, verify_template
from jaxcomm.schedules import Op, Schedule, Template, template
from jaxcomm.schedules.template import TemplateStep
from tests.schedules.schedule_cases import CASES, by_hand, proves

Rows = list[list[int]]


def small(rows: Rows, **sizes: Any) -> Schedule:
    return Schedule.from_table(rows, **({"kind": "small", "ranks": 3, "num_chunks": 1} | sizes))


R, C = Op.REDUCE, Op.COPY
SUM_ON_2 = [[0, 0, 2, 0, R], [1, 1, 2, 0, R]]


@pytest.mark.parametrize(
    ("rows", "sizes", "message"),
    [
        (
            [[0, 0, 3, 0, R]],
            {},
            "round 0: the reduce of chunk 0 from rank 0 to rank 3 does not go to one of 2 other ranks",
        ),
        ([[0, 3, 0, 0, R]], {}, "from rank 3 to rank 0 does not come from one of 3 ranks"),
        ([[0, -1, 0, 0, R]], {}, "does not come from one"),
        ([[0, 1, 1, 0, R]], {}, "from rank 1 to rank 1 does not go to one"),
        ([[0, 0, 1, 1, R]], {}, "reduce of chunk 1 from rank 0 to rank 1 is not one of 1 chunks"),
        ([[0, 0, 1, -1, C]], {}, "copy of chunk -1 .* is not one of 1 chunks"),
        ([[0, 0, 1, 0, 7]], {}, "the op 7 of chunk 0 from rank 0 to rank 1 is neither reduce nor copy"),
        ([[-1, 0, 1, 0, R]], {}, "not in the order of rounds"),
        ([[4, 0, 1, 0, R], [4, 2, 1, 0, R]], {}, "round 4: rank 1 receives from 2 ranks; it has 1 port"),
        ([[0, 1, 0, 0, R], [0, 1, 2, 0, R]], {}, "round 0: rank 1 sends to 2 ranks; it has 1 port"),
        ([*SUM_ON_2, [2, 0, 2, 0, R]], {}, r"round 2: .* from rank 0 to rank 2 adds .* of ranks \[0\] a second time"),
        ([*SUM_ON_2, [2, 2, 0, 0, C]], {}, r"chunk 0 of rank 1 lacks the contribution of ranks \[0, 2\]"),
        (
            [[0, 0, 2, 0, C], [0, 1, 2, 0, R]],
            {"ports": 2},
            "from rank 0 to rank 2 is not the only transfer into this chunk",
        ),
        (
            [[0, 0, 1, 0, R], [1, 0, 2, 0, R], [1, 1, 2, 0, R]],
            {"ports": 2},
            "brings a contribution that another transfer of its round also brings",
        ),
        ([], {"ranks": 1}, "1 ranks and 1 chunks"),
        ([], {"num_chunks": 0}, "3 ranks and 0 chunks"),
        ([], {"late": (3,)}, "late rank 3 is not one of 3 ranks"),
    ],
)
def test_the_error_says_what_and_where(rows: Rows, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(PlanError, match=rf"^small: .*{message}.*\n  Cure: ") as error:
        verify_schedule(small(rows, **sizes))
    assert len(str(error.value)) < 250


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0, 1, 2, 0, R], [0, 2, 1, 0, R]], "reduce of chunk 0 from rank 1 to rank 2 reads what a ReduceScatter left"),
        ([[0, 2, 1, 0, R]], "reduce of chunk 0 from rank 2 to rank 1 adds to what a ReduceScatter left as garbage"),
        ([[0, 2, 0, 0, R], [1, 0, 2, 0, C]], r"chunk 0 of rank 1 lacks the contribution of ranks \[0, 2\]"),
    ],
)
def test_garbage_after_the_precondition_is_not_read(rows: Rows, message: str) -> None:
    before = schedules.straggler(3, 2, 1).precondition
    with pytest.raises(PlanError, match=message):
        verify_schedule(small(rows, late=(2,), precondition=before))


def tampered_parameters(**changes: Any) -> dict[str, Any]:
    names = ("ranks", "straggler", "chunks", "template")
    values = dict(zip(names, schedules.straggler(8, 3, 9).parameters, strict=True)) | changes
    return {"parameters": tuple(values.values())}


def other_template() -> Template:
    """A consistent template for 8 ranks that does not spread the chunks."""
    first, last = turn_of_age(1), turn_of_age(3)
    return changed_template({first: first._replace(age=3), last: last._replace(age=1)})


def turn_of_age(age: int) -> TemplateStep:
    return next(step for step in template(8).steps if step.age == age)


def changed_template(changes: dict[TemplateStep, TemplateStep]) -> Template:
    return Template.of_steps(8, template(8).colours, (changes.get(step, step) for step in template(8).steps))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "ring"},
        {"kind": "hybrid"},
        {"kind": "halving_doubling"},
        {"ranks": 7},
        {"ranks": 9},
        {"num_chunks": 8},
        {"num_chunks": 10},
        {"num_rounds": 10},
        {"volume": 10},
        {"ports": 0},
        {"ports": 7},
        {"late": 4},
        {"late": None},
        {"template": other_template()},
        {"template": template(7)},
        {"precondition": None},
        {"precondition": schedules.straggler(8, 3, 8).precondition},
        {"precondition": schedules.straggler(8, 4, 9).precondition},
        {"precondition": schedules.straggler(8, 3, 9)},
        {"unroll": lambda *_: schedules.straggler(8, 3, 9).table()[1:]},
        {"parameters": ()},
        tampered_parameters(chunks=8),
        tampered_parameters(straggler=2),
        tampered_parameters(template=other_template()),
        {"template": other_template()} | tampered_parameters(template=other_template()),
    ],
)
def test_no_proof_through_a_template_that_is_not_the_schedules(change: dict[str, Any]) -> None:
    schedule = schedules.straggler(8, 3, 9)
    assert proves(schedule)
    assert not proves(dataclasses.replace(schedule, **change))


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": 7},
        {"num_chunks": 7},
        {"num_rounds": 13},
        {"volume": 13},
        {"ports": 0},
        {"late": 9},
        {"precondition": schedules.straggler(8, 0, 8).precondition},
        {"unroll": lambda ranks: schedules.ring(ranks).table()[1:]},
        {"unroll": lambda ranks: schedules.ring(ranks).table()[::-1]},
        {"unroll": lambda ranks: schedules.ring(ranks).table().astype(np.int64)},
        {"unroll": lambda ranks: schedules.ring(ranks).table()[:, :4]},
    ],
)
def test_a_ring_is_what_it_declares(change: dict[str, Any]) -> None:
    assert not proves(dataclasses.replace(schedules.ring(8), **change))


@pytest.mark.parametrize("name", CASES)
def test_a_schedule_is_not_proved_by_its_name(name: str) -> None:
    schedule = CASES[name](6)
    shorter = schedule.table()[:-1]
    assert not proves(dataclasses.replace(schedule, unroll=lambda *_: shorter))
    assert not proves(by_hand(schedule, shorter))


def broken_template(dice: random.Random, ranks: int) -> Template | None:
    """A random consistent template with a few rows changed from the right one; None if it became inconsistent."""
    steps = list(template(ranks).steps)
    for _ in range(dice.choice([1, 1, 2])):
        i, j = dice.randrange(len(steps)), dice.randrange(len(steps))
        a, b = steps[i], steps[j]
        steps[i], steps[j] = dice.choice(
            [
                (a._replace(dst=b.dst), b._replace(dst=a.dst)),
                (a._replace(age=b.age), b._replace(age=a.age)),
                (a._replace(src=b.src), b._replace(src=a.src)),
                (a._replace(dst=b.dst, age=b.age), b._replace(dst=a.dst, age=a.age)),
                (a._replace(age=dice.randrange(1, len(template(ranks).colours) + 1)), b),
            ]
        )
    colours = list(template(ranks).colours)
    if dice.random() < 0.2:
        dice.shuffle(colours)
    try:
        return Template.of_steps(ranks, colours, steps)
    except PlanError:
        return None


@pytest.mark.parametrize("ranks", [3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 16])
def test_the_proof_of_a_template_agrees_with_the_execution_of_its_transfers(ranks: int) -> None:
    dice = random.Random(ranks)
    refused = 0
    for _ in range(60):
        candidate = broken_template(dice, ranks)
        if candidate is None:
            continue
        # With the largest number of chunks, one chunk passes all ages before the end, so both proofs must agree.
        for chunks in (2, ranks + 1, 2 * ranks + 12):
            schedule = schedules.straggler(ranks, dice.randrange(ranks), chunks, candidate)
            executed = proves(by_hand(schedule))
            if proves(schedule) != executed:
                assert executed and chunks < 2 * ranks, "an incomplete template does for a few chunks"
            refused += not executed
    assert refused or ranks < 5


def test_a_template_serves_no_single_chunk() -> None:
    with pytest.raises(PlanError, match="1 chunks; a template serves 2 or more"):
        verify_template(template(8), 1)


def test_a_template_brings_a_chunk_once() -> None:
    with pytest.raises(PlanError, match="brings a chunk to a rank that also gets it in another row"):
        verify_template(other_template(), 9)


def test_a_template_reaches_every_rank() -> None:
    nobody = TemplateStep(-1, turn_of_age(3).dst, -1)
    with pytest.raises(PlanError, match="a chunk reaches 6 of 7 ranks"):
        verify_template(changed_template({turn_of_age(3): nobody}), 9)


def test_a_template_sends_what_the_sender_holds() -> None:
    first, last = turn_of_age(1), turn_of_age(3)
    with pytest.raises(PlanError, match=r"age=1.* sends a chunk that its sender does not hold yet"):
        verify_template(changed_template({first: first._replace(src=last.src), last: last._replace(src=first.src)}), 9)


def test_a_million_chunks_are_proved_at_once() -> None:
    start = time.process_time()
    proof = verify_schedule(schedules.straggler(100, 7, 1_000_000))
    assert proof.counts["rounds"] == 1_000_006
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: schedules.ring(1024),
        lambda: schedules.halving_doubling(1024),
        lambda: schedules.direct(1024),
        lambda: schedules.broadcast(1024, 5),
        lambda: schedules.straggler(1024, 5, 4096),
        lambda: schedules.hybrid(1024, 5, 4096, 1024),
    ],
    ids=["ring", "halving_doubling", "direct", "broadcast", "straggler", "hybrid"],
)
def test_a_thousand_ranks_are_proved_in_seconds(make: Callable[[], Schedule]) -> None:
    start = time.process_time()
    proof = verify_schedule(make())
    assert proof.ranks == 1024
    assert time.process_time() - start < 3


def test_the_proof_says_what_was_proved() -> None:
    proof = verify_schedule(schedules.ring(4))
    assert str(proof) == ("ring: 4 ranks, 4 chunks, 6 rounds, 24 transfers; proved by execution of every transfer")
    proof = verify_schedule(by_hand(schedules.straggler(4, 0, 3)))
    assert proof.counts == {"rounds": 4, "transfers": 12, "transfers before": 6}
