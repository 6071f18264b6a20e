"""Programs compute their schedules' sums in every order that the waits allow; malformed programs are refused."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from jaxcomm import schedules
from jaxcomm.errors import PlanError
from jaxcomm.program.lowering import ProgramStep, lower
from jaxcomm.program.program import Program, ProgramOp, compile
from jaxcomm.program.verifier import verify_program
from jaxcomm.schedules import Op, Schedule
from tests.program.program_interpreter import run, sums_in_any_order
from tests.schedules.schedule_cases import CASES, random_numbers, ranks_of

RANKS = ranks_of([2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17], slow=[15, 31, 32])


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", CASES)
def test_compiled_programs_are_proved(name: str, ranks: int) -> None:
    schedule = CASES[name](ranks)
    data = compile(schedule)
    assert Program.decode(data).encode() == data
    proof = verify_program(data, schedule)
    assert (proof.ranks, proof.chunks) == (ranks, schedule.num_chunks)


@pytest.mark.parametrize("length", [1, 2, 37, 240])
@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 11])
@pytest.mark.parametrize("name", CASES)
def test_programs_sum_every_element_in_every_order(name: str, ranks: int, length: int) -> None:
    program = Program.decode(compile(CASES[name](ranks)))
    assert sums_in_any_order(program, length)


@pytest.mark.parametrize("ranks", [3, 4, 6, 7, 8, 13])
@pytest.mark.parametrize("chunks", [1, 2, 20])
def test_a_straggler_costs_one_operation_per_chunk_after_its_arrival(ranks: int, chunks: int) -> None:
    late = ranks // 2
    program = Program.decode(compile(schedules.straggler(ranks, late, chunks)))
    others = [rank for rank in range(ranks) if rank != late]
    early, final = program.ops[:chunks], program.ops[chunks:]
    assert sorted(op.chunk for op in early) == sorted(op.chunk for op in final) == list(range(chunks))
    for op in early:
        owner = others[op.chunk % len(others)]
        assert (op.rank, op.reads, op.writes, op.waits) == (owner, tuple(others), (owner,), ())
    for op in final:
        owner = others[op.chunk % len(others)]
        assert (op.rank, op.reads, op.writes) == (owner, tuple(sorted((owner, late))), tuple(range(ranks)))
        assert [program.ops[wait].chunk for wait in op.waits] == [op.chunk]


def test_direct_is_one_operation_per_chunk() -> None:
    everybody = (0, 1, 2, 3)
    assert Program.decode(compile(schedules.direct(4))).ops == tuple(
        ProgramOp(chunk, chunk, everybody, everybody, ()) for chunk in range(4)
    )


def test_a_ring_is_chains_that_end_in_a_store_to_everybody() -> None:
    ops = Program.decode(compile(schedules.ring(4))).ops
    chain = [op for op in ops if op.chunk == 0]
    assert [(op.rank, op.reads, op.writes) for op in chain] == [
        (1, (0, 1), (1,)),
        (2, (1, 2), (2,)),
        (3, (2, 3), (0, 1, 2, 3)),
    ]
    assert [len(op.waits) for op in chain] == [0, 1, 1]


def test_sums_into_one_rank_become_one_operation_until_somebody_reads() -> None:
    rows = [[0, 2, 1, 0, Op.REDUCE], [1, 3, 1, 0, Op.REDUCE], [2, 1, 0, 0, Op.REDUCE]]
    rows += [[3, 0, rank, 0, Op.COPY] for rank in (1, 2, 3)]
    schedule = Schedule.from_table(rows, kind="small", ranks=4, num_chunks=1, ports=3)
    data = compile(schedule)
    verify_program(data, schedule)
    assert Program.decode(data).ops == (
        ProgramOp(1, 0, (1, 2, 3), (1,), ()),
        ProgramOp(0, 0, (0, 1), (0, 1, 2, 3), (0,)),
    )


def test_a_rank_that_is_overwritten_is_read_before() -> None:
    # Rank 2 overwrites rank 0's value after rank 1 has added it, so this sum must not wait for the value of rank 3.
    rows = [[0, 0, 1, 0, Op.REDUCE], [1, 2, 0, 0, Op.COPY], [2, 3, 1, 0, Op.REDUCE]]
    program = Program.decode(compile(Schedule.from_table(rows, kind="small", ranks=4, num_chunks=1)))
    pieces = [[np.array([10**rank])] for rank in range(4)]
    run(program.ops, pieces)
    assert [int(held[0][0]) for held in pieces] == [100, 1011, 100, 1000]
    assert [op.waits for op in program.ops] == [(), (0,), (0,)]


def test_transfers_of_one_round_read_what_was_there_before() -> None:
    # In one round 0 sends to 1, 1 sends to 2, 3 exchanges with 4, and 3 copies its old value to 5.
    rows = [[0, 0, 1, 0, Op.REDUCE], [0, 1, 2, 0, Op.REDUCE]]
    rows += [[0, 3, 4, 0, Op.REDUCE], [0, 4, 3, 0, Op.REDUCE], [0, 3, 5, 0, Op.COPY]]
    program = Program.decode(compile(Schedule.from_table(rows, kind="small", ranks=6, num_chunks=1, ports=2)))
    pieces = [[np.array([10**rank])] for rank in range(6)]
    run(program.ops, pieces)
    assert [int(held[0][0]) for held in pieces] == [1, 11, 110, 11000, 11000, 1000]


@pytest.mark.parametrize(
    "rows",
    [
        [[0, 0, 1, 0, Op.REDUCE], [0, 1, 2, 0, Op.REDUCE], [0, 2, 0, 0, Op.REDUCE]],
        [[0, 0, 1, 0, Op.COPY], [0, 1, 0, 0, Op.COPY]],
    ],
    ids=["a cycle of three", "a swap"],
)
def test_what_needs_more_memory_is_refused(rows: list[list[int]]) -> None:
    schedule = Schedule.from_table(rows, kind="small", ranks=3, num_chunks=1)
    with pytest.raises(
        PlanError, match=r"round 0, chunk 0: ranks \[0, 1(, 2)?\] overwrite what they read from each other"
    ):
        compile(schedule)


def test_compilation_is_quick() -> None:
    schedule = schedules.straggler(8, 3, 112)
    schedule.table()
    start = time.process_time()
    compile(schedule)
    assert time.process_time() - start < 0.1


def broken(program: Program, index: int, **changes: tuple[int, ...]) -> Program:
    ops = list(program.ops)
    ops[index] = ops[index]._replace(**changes)
    return Program(program.ranks, program.chunks, tuple(ops))


@pytest.mark.parametrize("name", CASES)
def test_every_wait_is_needed(name: str) -> None:
    schedule = CASES[name](5)
    program = Program.decode(compile(schedule))
    for index, op in enumerate(program.ops):
        for wait in op.waits:
            with pytest.raises(PlanError, match=rf"op {index} does not wait for op \d+, with which it races for chunk"):
                verify_program(broken(program, index, waits=tuple(w for w in op.waits if w != wait)), schedule)


@pytest.mark.parametrize("ranks", [2, 3, 5, 7, 8])
@pytest.mark.parametrize("name", CASES)
def test_broken_programs_that_change_the_result_are_caught(name: str, ranks: int) -> None:
    schedule = CASES[name](ranks)
    program = Program.decode(compile(schedule))
    dice = random.Random(name)
    buffers = random_numbers(schedule)
    wrong = 0
    for _ in range(40):
        index = dice.randrange(len(program.ops))
        field = dice.choice(["reads", "writes"])
        others = set(getattr(program.ops[index], field)) ^ {dice.randrange(ranks)}
        if others:
            candidate = broken(program, index, **{field: tuple(sorted(others))})
            pieces = [[np.array(number) for number in buffer] for buffer in buffers]
            run(candidate.ops, pieces)
            if any(not np.array_equal(held, buffers.sum(axis=0)) for held in pieces):
                wrong += 1
                with pytest.raises(PlanError):
                    verify_program(candidate, schedule)
    assert wrong


def test_sums_of_the_early_ranks_must_not_wait_for_the_late_one() -> None:
    schedule = schedules.straggler(3, 2, 1)
    everybody = (0, 1, 2)
    together = Program(3, 1, (ProgramOp(0, 0, everybody, everybody, ()),))
    verify_program(together)
    with pytest.raises(PlanError, match="chunk 0 of the others is not reduced before the late rank 2 arrives"):
        verify_program(together, schedule)


def test_all_ranks_must_get_the_same_bits() -> None:
    pairs = [ProgramOp(0, 0, (0, 1), (0, 1), ()), ProgramOp(2, 0, (2, 3), (2, 3), ())]
    doubling = [*pairs, ProgramOp(0, 0, (0, 2), (0, 2), (0, 1)), ProgramOp(1, 0, (1, 3), (1, 3), (0, 1))]
    verify_program(Program(4, 1, tuple(doubling)))  # two ranks sum the same two values
    one_by_one = [pairs[0], ProgramOp(0, 0, (0, 2, 3), (0,), (0,)), pairs[1]._replace(waits=(1,))]
    one_by_one.append(ProgramOp(1, 0, (1, 2), (1, 2, 3), (0, 2)))
    with pytest.raises(PlanError, match="chunk 0 of rank 1 was added up in another order than that of rank 0"):
        verify_program(Program(4, 1, tuple(one_by_one)))


def test_a_contribution_is_added_once() -> None:
    ops = (ProgramOp(0, 0, (0, 1), (0,), ()), ProgramOp(1, 0, (0, 1), (0, 1), (0,)))
    with pytest.raises(PlanError, match=r"op 1 adds the contribution of ranks \[1\] to chunk 0 twice"):
        verify_program(Program(2, 1, ops))


def test_every_rank_gets_every_contribution() -> None:
    with pytest.raises(PlanError, match=r"chunk 0 of rank 1 lacks the contribution of ranks \[0\]"):
        verify_program(Program(2, 1, (ProgramOp(0, 0, (0, 1), (0,), ()),)))


def test_a_program_for_another_schedule_is_refused() -> None:
    with pytest.raises(PlanError, match="it is for 4 ranks and 4 chunks, the schedule for 5 and 5"):
        verify_program(compile(schedules.ring(4)), schedules.ring(5))


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8])
def test_a_direct_join_is_one_operation_per_chunk_which_stores_to_all(ranks: int) -> None:
    late, chunks = ranks // 2, 2 * ranks + 1
    schedule = schedules.direct_join(ranks, late, chunks)
    assert schedule.precondition is not None
    others = [rank for rank in range(ranks) if rank != late]
    owners = [others[chunk % len(others)] for chunk in range(chunks)]
    assert lower(schedule)[len(lower(schedule.precondition)) :] == [
        ProgramStep(chunk, owner, tuple(sorted((owner, late))), tuple(range(ranks)))
        for chunk, owner in enumerate(owners)
    ]
