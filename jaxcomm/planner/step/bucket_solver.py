"""Assigns gradients to buckets, and schedules to buckets. All buckets share the late rank's delay.

A step's end is the greatest of several sums of bucket times (see `queue`), so one linear inequality per sum and delay
describes it exactly. CP-SAT finds the boundaries and schedules with the earliest end.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final, NamedTuple

import numpy as np

from jaxcomm import cp_sat
from jaxcomm.cp_sat import WORK_PER_SECOND, Log
from jaxcomm.planner.step.greedy import greedy
from jaxcomm.planner.step.jobs import Jobs, Packing
from jaxcomm.planner.step.queue import Floats, Ints, StepQueue

SCENARIOS: Final = 32  # the solver gets at most this many steps; if there are more, neighbouring steps are averaged
TICKS: Final = 2**24  # an upper limit on a step's time, in the solver's integers
GAP: Final = 1e-4  # relative gap to the bound at which the solver stops


class Assignment(NamedTuple):
    """The buckets and the schedule of each.

    `seconds` is the mean time from the late rank's last gradient to the last sum. `status` and `gap` are the solver's
    results.
    """

    packing: Packing
    seconds: float
    status: str
    gap: float


def assign(jobs: Jobs, stages: Floats, *, time_limit: float, seed: int, log: Log = None) -> Assignment:
    """Chooses buckets and one option per bucket size so that, averaged over the steps, the last sum is ready earliest.

    Args:
      jobs: the step's gradients, and the buckets that they can form.
      stages: how late the late ranks are, as for `StepQueue.of`; similar steps must be neighbours.
      time_limit: approximate seconds for the solver. The limit counts work, so it is equal on every machine.
      seed: seed of the solver.
      log: receives the lines of the solver's log.

    Raises:
      JaxcommError: OR-Tools is not installed.
    """
    groups = np.array_split(stages, min(SCENARIOS, stages.shape[1]), axis=1)
    few = np.stack([group.mean(axis=1) for group in groups], axis=1)
    weights = np.array([group.shape[1] for group in groups])
    queue = jobs.queue(few)
    packing, status, gap = jobs.single, "NOT_NEEDED", 0.0
    if len(jobs.runs) > len(packing.runs) or any(len(options) > 1 for options in jobs.options.values()):
        start = greedy(jobs, queue, weights)
        packing, status, gap = _solve(jobs, queue, weights, start, time_limit, seed, log)
        packing = _with_first_options(jobs, queue, weights, packing)
    return Assignment(packing, jobs.seconds(stages, packing), status, gap)


def _with_first_options(jobs: Jobs, queue: StepQueue, weights: Ints, packing: Packing) -> Packing:
    """The packing, changed to each size's first option where the step then ends no later.

    The solver may take another option that is equally good.
    """

    def ends(packing: Packing) -> float:
        return float(np.average(jobs.exposed(queue, packing), weights=weights))

    for size in sorted(size for size, option in packing.choice.items() if option):
        plainer = packing.with_option(size, 0)
        if ends(plainer) <= ends(packing) * (1 + 1e-9):
            packing = plainer
    return packing


def _solve(
    jobs: Jobs, queue: StepQueue, weights: Ints, start: Packing, time_limit: float, seed: int, log: Log
) -> tuple[Packing, str, float]:
    """Chooses, by CP-SAT, buckets that hold each gradient exactly once, and one option per bucket size.

    The solver has one worker and a deterministic limit, so that equal input gives equal output.
    """
    cp_model = cp_sat.load("planning gradient buckets")
    beginning, ending, alike = defaultdict(list), defaultdict(list), defaultdict(list)
    for index, run in enumerate(jobs.runs):
        beginning[run.begin].append(index)
        ending[run.end].append(index)
        alike[run.bytes].append(index)
    longest = [max(o.before + o.after for o in jobs.options[run.bytes]) for run in jobs.runs]
    most = sum(max(longest[index] for index in here) for here in ending.values())
    tick = (float(queue.time.max()) + most) / TICKS or 1.0

    def ticks(seconds: float) -> int:
        return round(seconds / tick)

    model = cp_model.CpModel()
    take = [[model.new_bool_var(f"{run}_{i}") for i in range(len(jobs.options[run.bytes]))] for run in jobs.runs]
    for run, literals in zip(jobs.runs, take, strict=True):
        for index, literal in enumerate(literals):
            model.add_hint(literal, run in start.runs and index == start.choice[run.bytes])
    for atom in range(len(jobs.ready)):
        begin = sum(literal for index in beginning[atom] for literal in take[index])
        model.add(begin == (sum(literal for index in ending[atom - 1] for literal in take[index]) if atom else 1))
    for size, indices in alike.items():
        chosen = [model.new_bool_var(f"{size}_{option}") for option in range(len(jobs.options[size]))]
        model.add_at_most_one(chosen)
        for option, allowed in enumerate(chosen):
            model.add_hint(allowed, option == start.choice.get(size))
            for index in indices:
                model.add_implication(take[index][option], allowed)

    step_ends = [model.new_int_var(0, 2 * TICKS, "") for _ in weights]
    left, stages = [], len(queue.first)
    for stage in range(stages):
        sums = [model.new_constant(0)]
        for atom in reversed(range(len(jobs.ready))):
            total = model.new_int_var(0, 2 * TICKS, "")
            literals = [literal for index in ending[atom] for literal in take[index]]
            options = [option for index in ending[atom] for option in jobs.options[jobs.runs[index].bytes]]
            seconds = [ticks(option.work(stages)[stage]) for option in options]
            model.add(total == sums[-1] + cp_model.LinearExpr.weighted_sum(literals, seconds))
            sums.append(total)
        left.append(sums[::-1])
    for (row, column), time in np.ndenumerate(queue.time):
        work = sum(sums[first] for sums, first in zip(left, queue.first[:, row, column], strict=True))
        model.add(step_ends[column] >= ticks(float(time)) + work)
    steps = int(weights.sum())
    departures = [
        ticks(jobs.min_saving(run) * steps) * literal
        for run, own in zip(jobs.runs, take, strict=True)
        for literal in own[1:]
    ]
    model.minimize(cp_model.LinearExpr.weighted_sum(step_ends, weights.tolist()) + sum(departures))

    solver = cp_sat.solver(cp_model, WORK_PER_SECOND * time_limit, seed, log)
    solver.parameters.relative_gap_limit = GAP
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):  # the solver stopped before it read the hint
        return start, "GREEDY", 1.0
    found = {
        run: next(index for index, literal in enumerate(own) if solver.boolean_value(literal))
        for run, own in zip(jobs.runs, take, strict=True)
        if any(map(solver.boolean_value, own))
    }
    packing = Packing(tuple(sorted(found)), {run.bytes: index for run, index in found.items()})
    best, bound = solver.objective_value, solver.best_objective_bound
    return packing, solver.status_name(status), (best - bound) / best if best else 0.0
