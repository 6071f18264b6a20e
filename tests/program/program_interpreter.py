"""Runs programs on numbers in any order that their waits allow, without the package's executors."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from jaxcomm.program.program import Program, ProgramOp
from tests.schedules.schedule_cases import Numbers


def sums_in_any_order(program: Program, length: int) -> bool:
    """Whether every rank ends with the sum of buffers of this many elements, in the program's order and two others."""
    dice = random.Random(length)
    buffers = np.random.default_rng(length).integers(-(2**40), 2**40, (program.ranks, length))
    for ops in (program.ops, in_any_order(program, dice), in_any_order(program, dice)):
        # Chunks have unlike lengths; some are empty if the buffer is short.
        pieces = [np.array_split(buffer, program.chunks) for buffer in buffers]
        run(ops, pieces)
        if not all(np.array_equal(np.concatenate(held), buffers.sum(axis=0)) for held in pieces):
            return False
    return True


def run(ops: Iterable[ProgramOp], pieces: list[list[Numbers]]) -> None:
    """Executes operations on the chunks of every rank, `pieces[rank][chunk]`."""
    for op in ops:
        total = np.sum([pieces[rank][op.chunk] for rank in op.reads], axis=0)
        for rank in op.writes:
            pieces[rank][op.chunk] = total


def in_any_order(program: Program, dice: random.Random) -> list[ProgramOp]:
    """The operations in a random valid order: a rank's operations stay in list order, each after its waits."""
    queues = [[i for i, op in enumerate(program.ops) if op.rank == rank] for rank in range(program.ranks)]
    done: set[int] = set()
    order = []
    while len(order) < len(program.ops):
        ready = [queue for queue in queues if queue and done.issuperset(program.ops[queue[0]].waits)]
        index = dice.choice(ready).pop(0)
        done.add(index)
        order.append(program.ops[index])
    return order
