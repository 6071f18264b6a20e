"""Schedules with a random change of one transfer: every change that alters the result is refused."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest

from jaxcomm.schedules import Op, Schedule
from tests.schedules.schedule_cases import CASES, adds_up, by_hand, proves, ranks_of

ROUND, SRC, DST, CHUNK, OP = range(5)
Rows = list[list[int]]


def change(column: int, values: Callable[[Schedule], int]) -> Callable[[random.Random, Schedule, Rows], None]:
    def change_one(dice: random.Random, schedule: Schedule, rows: Rows) -> None:
        dice.choice(rows)[column] = dice.randrange(values(schedule))

    return change_one


def swap(column: int) -> Callable[[random.Random, Schedule, Rows], None]:
    def swap_two(dice: random.Random, schedule: Schedule, rows: Rows) -> None:
        a, b = dice.choice(rows), dice.choice(rows)
        a[column], b[column] = b[column], a[column]

    return swap_two


def drop(dice: random.Random, schedule: Schedule, rows: Rows) -> None:
    del rows[dice.randrange(len(rows))]


def repeat(dice: random.Random, schedule: Schedule, rows: Rows) -> None:
    rows.append(list(dice.choice(rows)))


def repeat_later(dice: random.Random, schedule: Schedule, rows: Rows) -> None:
    rows.append(list(dice.choice(rows)))
    rows[-1][ROUND] = schedule.num_rounds - 1


BREAKS: dict[str, Callable[[random.Random, Schedule, Rows], None]] = {
    "drop a transfer": drop,
    "send one twice": repeat,
    "send one again in the last round": repeat_later,
    "swap two transfers' rounds": swap(ROUND),
    "swap two senders": swap(SRC),
    "swap two receivers": swap(DST),
    "swap two chunks": swap(CHUNK),
    "move a transfer to another round": change(ROUND, lambda schedule: schedule.num_rounds),
    "send from another rank": change(SRC, lambda schedule: schedule.ranks),
    "send to another rank": change(DST, lambda schedule: schedule.ranks),
    "send another chunk": change(CHUNK, lambda schedule: schedule.num_chunks),
    "take the other op": change(OP, lambda schedule: len(Op)),
}


@pytest.mark.parametrize("ranks", ranks_of([2, 3, 8], slow=[4, 5, 7]))
@pytest.mark.parametrize("damage", BREAKS)
def test_every_break_that_changes_the_result_is_caught(damage: str, ranks: int) -> None:
    dice = random.Random(f"{damage} {ranks}")
    wrong = 0
    for name, case in CASES.items():
        schedule = case(ranks)
        for _ in range(5):
            rows = schedule.table().tolist()
            BREAKS[damage](dice, schedule, rows)
            broken = dataclasses.replace(by_hand(schedule, rows), ports=ranks)  # so that no port limit refuses it
            if not adds_up(broken):
                wrong += 1
                assert not proves(broken), (name, rows)
    assert wrong > 10  # enough changes alter the result to make the test meaningful


@pytest.mark.parametrize("ranks", [3, 4, 6, 7])
@pytest.mark.parametrize("damage", BREAKS)
def test_every_break_of_a_precondition_is_caught(damage: str, ranks: int) -> None:
    dice = random.Random(f"{damage} {ranks}")
    for name, case in CASES.items():
        schedule = case(ranks)
        if schedule.precondition is None or not len(schedule.precondition.table()):
            continue
        for _ in range(3):
            rows = schedule.precondition.table().tolist()
            BREAKS[damage](dice, schedule.precondition, rows)
            before = dataclasses.replace(by_hand(schedule.precondition, rows), ports=ranks)
            broken = dataclasses.replace(by_hand(schedule), precondition=before)
            touches_late = any(schedule.late in (row[SRC], row[DST]) for row in rows)
            if touches_late or not adds_up(broken):
                assert not proves(broken), (name, rows)
