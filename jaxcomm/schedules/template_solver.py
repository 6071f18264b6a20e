"""Finds templates without a closed form by an integer program, whose size grows only with the logarithm of n.

`Template` defines offsets, ages and the number N of ranks that are not late. With L = ⌈log2 n⌉ a chunk travels for
A = L + 1 rounds, so each of the N ranks holds two chunks that still travel. Each age 1..A has one of two colours,
chosen so that a rank always holds one chunk of each colour. The ages of these two chunks are the rank's state. In every
round the rank receives a chunk and moves to its next state. The moves of one round, in the order of offsets 0, −1, −2,
…, form a closed walk through the states.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from typing import Any, NamedTuple

from jaxcomm import cp_sat
from jaxcomm.errors import PlanError
from jaxcomm.schedules.template import Template, TemplateStep

_EFFORT = 5.0  # limit per model in CP-SAT's deterministic seconds, so that every machine finds the same template


class _Move(NamedTuple):
    state: tuple[int, ...]  # for each colour, the age of the chunk that the rank holds
    received: int  # age of the chunk received; 0 if the late rank sends it
    then: tuple[int, ...]


def search(ranks: int) -> Template:
    """Returns a template, which is pairwise if the number of ranks is even and a pairwise template is found.

    Raises:
      JaxcommError: OR-Tools is not installed.
      PlanError: no template was found.
    """
    last = (ranks - 1).bit_length()
    colourings = sorted(product((0, 1), repeat=last - 1), key=lambda free: (free.count(0), free))
    for pairwise in (True, False) if ranks % 2 == 0 else (False,):
        for free in colourings:
            steps = _solve(ranks - 1, _moves((*free, 1, 0)), pairwise)
            if steps:
                return Template.of_steps(ranks, (*free, 1, 0), steps)
    raise PlanError(
        f"no straggler schedule with {last} rounds more than chunks was found for {ranks} ranks. "
        "Cure: use another number of ranks, or a ring."
    )


def _moves(colours: tuple[int, ...]) -> list[_Move]:
    """All moves from one state to another. A state has one age of each colour."""
    greatest = len(colours)
    ages = [[age for age in range(1, greatest + 1) if colours[age - 1] == colour] for colour in (0, 1)]
    moves = []
    for state in product(*ages):
        kept = [age + 1 for age in state if age < greatest]
        for received in range(greatest) if greatest in state else (greatest,):
            held = sorted(kept + [received + 1] * (received < greatest), key=lambda age: colours[age - 1])
            if [colours[age - 1] for age in held] == [0, 1]:
                moves.append(_Move(state, received, tuple(held)))
    return moves


def _solve(others: int, moves: list[_Move], pairwise: bool) -> list[TemplateStep] | None:
    """Returns the steps of a closed walk of `others` moves in which every reception has a sender, or None."""
    cp = cp_sat.load("finding the template of a straggler schedule")
    model = cp.CpModel()
    times = [model.new_int_var(0, others, "") for _ in moves]
    model.add(sum(times) == others)
    model.add(sum(x for x, move in zip(times, moves, strict=True) if move.received == 0) == 1)
    for state in sorted({move.state for move in moves}):
        leaving = sum(x for x, move in zip(times, moves, strict=True) if move.state == state)
        model.add(leaving == sum(x for x, move in zip(times, moves, strict=True) if move.then == state))
    matching = (_swaps if pairwise else _sends)(model, moves, times, others)

    solver = cp_sat.solver(cp, _EFFORT, seed=1, log=None)
    solver.parameters.cp_model_presolve = False  # the model is small: presolving it takes longer than solving it
    while solver.solve(model) in (cp.OPTIMAL, cp.FEASIBLE):
        walk = _closed_walk(moves, [solver.value(x) for x in times])
        if len(walk) == others:
            chosen = {key: solver.value(variable) for key, variable in matching.items()}
            return _steps(moves, walk, chosen, pairwise)
        # Some moves are not on the walk. The new constraints exclude this solution: either no move starts at the walk's
        # states, or all moves do, or one of these moves leads to a state that is not on the walk.
        visited = {moves[index].state for index in walk}
        inside = sum(x for x, move in zip(times, moves, strict=True) if move.state in visited)
        onwards = sum(
            x for x, move in zip(times, moves, strict=True) if move.state in visited and move.then not in visited
        )
        nothing, everything = model.new_bool_var(""), model.new_bool_var("")
        model.add(inside == 0).only_enforce_if(nothing)
        model.add(inside == others).only_enforce_if(everything)
        model.add(onwards >= 1).only_enforce_if(nothing.negated(), everything.negated())
    return None


def _swaps(model: Any, moves: list[_Move], times: list[Any], others: int) -> dict[tuple[int, int], Any]:
    """For each pair of kinds of moves, the number of swaps. In a swap each move sends what the other one receives."""
    swaps: dict[tuple[int, int], Any] = {}
    partners: list[list[Any]] = [[] for _ in moves]
    for i, a in enumerate(moves):
        for j, b in enumerate(moves[i:], i):
            if a.received and b.received and a.received in b.state and b.received in a.state:
                swaps[i, j] = model.new_int_var(0, others, "")
                partners[i].append(swaps[i, j])
                partners[j].append(swaps[i, j])  # twice if i == j, because such a swap takes two moves of one kind
    for move, x, swapped in zip(moves, times, partners, strict=True):
        if move.received:
            model.add(sum(swapped) == x)
    return swaps


def _sends(model: Any, moves: list[_Move], times: list[Any], others: int) -> dict[tuple[int, int], Any]:
    """For each kind of move and each age, the number of moves that send a chunk of this age.

    The number of sends of each age is equal to the number of its receptions.
    """
    sends = {
        (i, age): model.new_int_var(0, others, "")
        for i, move in enumerate(moves)
        if move.received
        for age in move.state
    }
    for i, move in enumerate(moves):
        if move.received:
            model.add(sum(sends[i, age] for age in move.state) == times[i])
    for age in sorted({move.received for move in moves} - {0}):
        received = sum(x for x, move in zip(times, moves, strict=True) if move.received == age)
        model.add(sum(x for (_, sent), x in sends.items() if sent == age) == received)
    return sends


def _closed_walk(moves: list[_Move], times: list[int]) -> list[int]:
    """An Euler circuit (Hierholzer) that takes move i `times[i]` times. The move from the late rank is the first."""
    left: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, (move, count) in enumerate(zip(moves, times, strict=True)):
        if move.received:
            left[move.state] += [index] * count
    first = next(i for i, move in enumerate(moves) if move.received == 0 and times[i])
    path, walk = [first], []
    while path:
        out = left[moves[path[-1]].then]
        if out:
            path.append(out.pop())
        else:
            walk.append(path.pop())
    return walk[::-1]


def _steps(
    moves: list[_Move], walk: list[int], chosen: dict[tuple[int, int], int], pairwise: bool
) -> list[TemplateStep]:
    """Assigns the moves of the walk to the offsets 0, −1, −2, ... and matches senders to receivers as `chosen` says."""
    others = len(walk)
    offsets: dict[int, list[int]] = defaultdict(list)
    receivers: dict[int, list[int]] = defaultdict(list)
    for back, index in enumerate(walk):
        if back:
            offsets[index].append(others - back)
            receivers[moves[index].received].append(others - back)
    steps = [TemplateStep(others, 0, 0), TemplateStep(0, others, 0)]
    for (i, j), count in chosen.items():
        for _ in range(count):
            u = offsets[i].pop()
            if pairwise:
                v = offsets[j].pop()
                steps += TemplateStep(u, v, moves[j].received), TemplateStep(v, u, moves[i].received)
            else:
                steps.append(TemplateStep(u, receivers[j].pop(), j))
    return steps
