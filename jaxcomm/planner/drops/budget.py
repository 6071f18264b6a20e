"""The share of each layer that may be lost: all layers together lose the budget at the least cost to the training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm import cp_sat
from jaxcomm.cp_sat import WORK_PER_SECOND, Log

STEPS: Final = 32  # number of steps from 0 to the bound; a layer's share is a multiple of one step
CHOICES: Final = 8192  # approximate limit on the choices of all layers together; with many layers, each has fewer
TICKS: Final = 2**30  # total of the layers' largest costs, in the solver's integer units
UNITS: Final = 2**40  # maximum total of bytes times steps, in the solver's integer units

Floats = NDArray[np.float64]
Cost = Callable[[Floats], Floats]  # a layer's cost by its lost share


class Shares(NamedTuple):
    """The share that each layer may drop; `status` and `gap` as the solver states them."""

    shares: list[float]
    status: str
    gap: float


def cheapest(
    sizes: Sequence[int],
    costs: Sequence[Cost],
    bound: float,
    budget: float,
    *,
    time_limit: float,
    seed: int,
    log: Log = None,
) -> Shares:
    """The shares with the least total cost.

    Each share is a multiple of one step. A step is 1/32 of the bound, or larger if there are more than 256 layers.
    Together the layers lose at most the budget. Their total falls short of the budget by less than one step of the
    largest layer.

    Args:
      sizes: bytes of each layer, in forward order.
      costs: cost of each layer, by its lost share.
      bound: the greatest share of a layer that may be lost.
      budget: the share of all bytes that may be lost, at most `bound`.
      time_limit: approximate seconds for the solver. The limit counts work, so it is equal on every machine.
      seed: seed of the solver.
      log: receives the lines of the solver's log.

    Raises:
      JaxcommError: OR-Tools is not installed.
    """
    cp_model = cp_sat.load("planning a budget of drops")
    steps = max(1, min(STEPS, CHOICES // len(sizes)))
    grid = bound * np.arange(steps + 1) / steps
    priced = np.array([cost(grid) for cost in costs])
    tick = priced.max(axis=1).sum() / TICKS or 1.0
    unit = -(-sum(sizes) * steps // UNITS)
    units = [-(-nbytes // unit) for nbytes in sizes]
    target = int(sum(sizes) * steps * (budget / bound) / unit)

    start, left = [0] * len(sizes), target  # the greedy start loses the cheapest bytes first
    for layer in np.argsort(priced[:, -1] / units, kind="stable").tolist():
        start[layer] = min(steps, left // units[layer])
        left -= start[layer] * units[layer]

    model = cp_model.CpModel()
    taken = [[model.new_bool_var("") for _ in grid] for _ in sizes]
    for take, hint in zip(taken, start, strict=True):
        model.add_exactly_one(take)
        for index, literal in enumerate(take):
            model.add_hint(literal, index == hint)
    literals = [literal for take in taken for literal in take]
    lost = cp_model.LinearExpr.weighted_sum(literals, [size * count for size in units for count in range(len(grid))])
    model.add(lost <= target)
    model.add(lost > target - max(units))
    model.minimize(cp_model.LinearExpr.weighted_sum(literals, np.rint(priced / tick).astype(int).ravel().tolist()))

    solver = cp_sat.solver(cp_model, WORK_PER_SECOND * time_limit, seed, log)
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):  # the solver stopped before it read the hint
        return Shares([bound * count / steps for count in start], "GREEDY", 1.0)
    chosen = [next(i for i, literal in enumerate(take) if solver.boolean_value(literal)) for take in taken]
    best, least = solver.objective_value, solver.best_objective_bound
    return Shares(
        [bound * count / steps for count in chosen], solver.status_name(status), (best - least) / best if best else 0.0
    )
