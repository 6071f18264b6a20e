"""Schedules as collective-permutes: proved from their tables, short, and without late ranks until they are needed."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from jaxcomm import schedules
from jaxcomm.errors import PlanError
from jaxcomm.program.matchings import matchings
from jaxcomm.program.messages import BUFFER
from jaxcomm.program.permute_verifier import verify_permutes
from jaxcomm.program.permutes import ADD, NOTHING, Permute, Permutes, compile_permutes
from jaxcomm.schedules import Schedule
from tests.schedules.schedule_cases import CASES, HALVES, ranks_of


def permutes_of(program: Permutes) -> list[Permute]:
    return [permute for loop in program.loops for round_ in loop.rounds for permute in round_.permutes]


def check(schedule: Schedule, most: int | None = None) -> Permutes:
    program = compile_permutes(schedule, most)
    proof = verify_permutes(program, schedule.collective)
    assert proof.counts["messages"] == sum(len(phase.table()) for phase in schedule.phases)
    for permute in permutes_of(program):
        sources, targets = zip(*permute.pairs, strict=True)
        assert max(Counter(sources).values()) == max(Counter(targets).values()) == 1
        assert permute.sends.shape[2] <= (most or schedule.num_chunks)
    return program


@pytest.mark.parametrize("ranks", ranks_of([*range(2, 7), 8], slow=[7, 9, 12, 16]))
def test_every_schedule_is_proved_from_its_tables(ranks: int) -> None:
    for name, make in CASES.items():
        schedule = make(ranks)
        # With unlike shares fewer rounds repeat. A call of more than 200 permutes runs the platform's default instead.
        assert check(schedule).length <= (300 if name.startswith("unlike") else 200), name
        check(schedule, max(1, schedule.num_chunks // 8))
    for make_half in HALVES.values():
        check(make_half("reduce_scatter", ranks))
        check(make_half("all_gather", ranks))


def test_rounds_that_repeat_are_a_loop() -> None:
    assert check(schedules.straggler(8, 3, 28)).length == 15
    assert check(schedules.straggler(8, 3, 4096)).length == 16
    assert check(schedules.straggler(64, 3, 252)).length == 130
    assert check(schedules.ring(64)).length == 1
    assert [loop.iterations for loop in compile_permutes(schedules.ring(64)).loops] == [126]
    assert [loop.iterations for loop in compile_permutes(schedules.ring(8)).loops] == [1], "short ones stay unrolled"


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name](9).precondition])
def test_no_permute_before_a_late_rank_needs_it(name: str) -> None:
    schedule = CASES[name](9)
    moves = [len(phase.table()) for phase in schedule.phases]
    seen = 0
    loops = iter(compile_permutes(schedule).loops)
    for phase, after, count in zip(schedule.phases, schedule.phases[1:], moves, strict=False):
        end = seen + count
        while seen < end:
            loop = next(loops)
            for round_ in loop.rounds:
                for permute in round_.permutes:
                    assert not after.late_ranks & {rank for pair in permute.pairs for rank in pair}, phase.kind
                    seen += int((permute.sends != NOTHING).sum())
        assert seen == end


def test_sums_of_two_need_no_scratch() -> None:
    assert check(schedules.ring(8)).slots == 0
    ring = permutes_of(compile_permutes(schedules.ring(8)))
    assert [bool((permute.places == ADD).any()) for permute in ring] == [True] * 7 + [False] * 7
    assert check(schedules.direct(8)).slots == 7
    assert check(schedules.straggler(8, 3, 28)).slots == 24


def damaged(change: Any) -> Permutes:
    program = compile_permutes(schedules.straggler(5, 2, 4))
    change(program)
    return program


def swap(table: Any, index: tuple[int, ...], value: int) -> None:
    table[index] = value


DAMAGES = {
    "another chunk is sent": lambda p: swap(permutes_of(p)[0].sends, (0, permutes_of(p)[0].pairs[0][0], 0), 3),
    "a chunk is not sent": lambda p: swap(permutes_of(p)[-1].sends, (0, permutes_of(p)[-1].pairs[0][0], 0), NOTHING),
    "a chunk is stored over": lambda p: swap(permutes_of(p)[0].places, (0, permutes_of(p)[0].pairs[0][1], 0), BUFFER),
    "a sum lacks an operand": lambda p: np.copyto(p.loops[0].rounds[-1].additions[0].places, BUFFER),
    "a sum is of another chunk": lambda p: np.copyto(p.loops[0].rounds[-1].additions[0].chunks, 0),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_tables_are_refused(name: str) -> None:
    with pytest.raises(PlanError, match="messages: rank"):
        verify_permutes(damaged(DAMAGES[name]))


def test_permutations_are_as_few_as_peers() -> None:
    draw = random.Random(0)
    for _ in range(200):
        ranks = draw.randint(2, 12)
        every = [(src, dst) for src in range(ranks) for dst in range(ranks) if src != dst]
        pairs = draw.sample(every, draw.randint(1, len(every)))
        found = matchings({pair: range(draw.randint(1, 3)) for pair in pairs})
        assert sorted(pair for group in found for pair in group) == sorted(pairs)
        peers = max(max(Counter(pair[side] for pair in pairs).values()) for side in (0, 1))
        assert len(found) == peers
        for group in found:
            assert len({src for src, _ in group}) == len({dst for _, dst in group}) == len(group)
