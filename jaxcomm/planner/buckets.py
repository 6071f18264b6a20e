"""Which gradient buckets of a step use the late rank's delay, and how much of each: one delay, shared by all of them.

The end of a step is the greatest of some sums of what the buckets take (see `queue`), so one linear inequality per sum
and delay states it exactly, and CP-SAT finds the choice with the earliest end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from jaxcomm.errors import JaxcommError
from jaxcomm.plan.values import Spec
from jaxcomm.planner.queue import Floats, Ints, Queue, Work
from jaxcomm.profile import Bucket
from jaxcomm.simulate import Delays

SCENARIOS: Final = 32  # delays that the solver sees; more are averaged in groups of neighbours
TICKS: Final = 2**24  # the horizon in the solver's integers
WORK_PER_SECOND: Final = 0.2  # the solver's deterministic time, on the machine where it was measured
GAP: Final = 1e-4  # the solver stops when it is this close to its bound

Log = Callable[[str], None] | None


class Option(NamedTuple):
    """A schedule for a bucket, with its seconds before and after the late rank's arrival."""

    spec: Spec
    before: float
    after: float

    @property
    def times(self) -> tuple[float, float]:
        """Both of them."""
        return self.before, self.after


class Assignment(NamedTuple):
    """The choice for every bucket size, and what the step then takes.

    `plain_seconds` and `seconds`: mean time from the late rank's last gradient to the last sum, with the first option
    of every bucket and with the choice. `status` and `gap` as the solver states them.
    """

    choice: dict[int, Spec]
    plain_seconds: float
    seconds: float
    status: str
    gap: float


def assign(
    buckets: Sequence[Bucket],
    options: Mapping[int, Sequence[Option]],
    delays: Delays,
    *,
    min_gain: float,
    time_limit: float,
    seed: int,
    log: Log = None,
) -> Assignment:
    """Chooses one option per bucket size so that the step's last sum is there soonest, on average over the delays.

    A bucket that does not take its first option must save `min_gain` of what the first option takes.

    Args:
      buckets: the step's gradient buckets.
      options: for every size of bucket its options, the plain one first.
      delays: how late the late rank is.
      min_gain: the least saving, as a share.
      time_limit: seconds for the solver, roughly: the limit is on its work, which is the same on every machine.
      seed: of the solver.
      log: receives the lines of the solver's log.

    Raises:
      JaxcommError: OR-Tools is not installed.
    """
    step = _Step(sorted(buckets, key=lambda bucket: bucket.ready_s), options, min_gain)
    groups = np.array_split(delays.seconds, min(SCENARIOS, len(delays.seconds)))
    few, weights = np.array([group.mean() for group in groups]), np.array([len(group) for group in groups])
    queue = step.queue(few)
    start = _greedy(step, queue, weights)
    choice, status, gap = _solve(step, queue, weights, start, time_limit, seed, log)
    everything = step.queue(delays.seconds)
    return Assignment(
        {size: options[size][index].spec for size, index in choice.items()},
        float(everything.exposed(step.work(dict.fromkeys(options, 0))).mean()),
        float(everything.exposed(step.work(choice)).mean()),
        status,
        gap,
    )


class _Step(NamedTuple):
    """The buckets in the order in which they are ready, and the options of their sizes."""

    buckets: Sequence[Bucket]
    options: Mapping[int, Sequence[Option]]
    min_gain: float

    def queue(self, delays: Floats) -> Queue:
        """The network's queue, as far as any choice of options can decide its end."""
        times = [np.array([option.times for option in self.options[bucket.bytes]]) for bucket in self.buckets]
        least = Work(*np.array([each.min(axis=0) for each in times]).T)
        most = Work(*np.array([each.max(axis=0) for each in times]).T)
        return Queue.of(np.array([bucket.ready_s for bucket in self.buckets]), delays).pruned(least, most)

    def work(self, choice: Mapping[int, int]) -> Work:
        """What the buckets take with these options."""
        return Work(*np.array([self.options[bucket.bytes][choice[bucket.bytes]].times for bucket in self.buckets]).T)

    def dues(self) -> dict[int, float]:
        """What all buckets of a size must save together to take another option than the first."""
        dues = dict.fromkeys(self.options, 0.0)
        for bucket in self.buckets:
            dues[bucket.bytes] += self.min_gain * self.options[bucket.bytes][0].after
        return dues


def _greedy(step: _Step, queue: Queue, weights: Ints) -> dict[int, int]:
    """A good start: size by size, the largest first, the best option while the others stay, until nothing changes."""
    dues = step.dues()
    choice = dict.fromkeys(sorted(step.options, reverse=True), 0)
    work = step.work(choice)
    changed = True
    while changed:
        changed = False
        for size, old in choice.items():
            here = np.array([bucket.bytes == size for bucket in step.buckets])
            costs = []
            for index, option in enumerate(step.options[size]):
                work.before[here], work.after[here] = option.before, option.after
                exposed = np.average(queue.exposed(work), weights=weights)
                costs.append(exposed + (dues[size] if index else 0.0))
            best = min(range(len(costs)), key=lambda index: (costs[index], index != old))
            work.before[here], work.after[here] = step.options[size][best].times
            choice[size], changed = best, changed or best != old
    return choice


def _solve(
    step: _Step,
    queue: Queue,
    weights: Ints,
    start: Mapping[int, int],
    time_limit: float,
    seed: int,
    log: Log,
) -> tuple[dict[int, int], str, float]:
    """CP-SAT over one option per size; one worker and a deterministic limit, so that equal input gives equal output."""
    try:
        from ortools.sat.python import cp_model
    except ModuleNotFoundError:
        message = "planning gradient buckets needs the package ortools.\n  Cure: pip install ortools."
        raise JaxcommError(message) from None
    most = sum(max(sum(option.times) for option in step.options[bucket.bytes]) for bucket in step.buckets)
    tick = (float(queue.time.max()) + most) / TICKS or 1.0

    def ticks(seconds: float) -> int:
        return round(seconds / tick)

    model = cp_model.CpModel()
    take = {
        size: [model.new_bool_var(f"{size}_{index}") for index in range(len(options))]
        for size, options in step.options.items()
    }
    for size, chosen in take.items():
        model.add_exactly_one(chosen)
        for index, literal in enumerate(chosen):
            model.add_hint(literal, index == start[size])

    left = []
    for part in (0, 1):
        sums = [model.new_constant(0)]
        for bucket in reversed(step.buckets):
            total = model.new_int_var(0, 2 * TICKS, "")
            seconds = [ticks(option.times[part]) for option in step.options[bucket.bytes]]
            model.add(total == sums[-1] + cp_model.LinearExpr.weighted_sum(take[bucket.bytes], seconds))
            sums.append(total)
        left.append(sums[::-1])
    ends = [model.new_int_var(0, 2 * TICKS, "") for _ in weights]
    for row, column in np.ndindex(queue.time.shape):
        before, after = left[0][queue.before[row, column]], left[1][queue.after[row, column]]
        model.add(ends[column] >= ticks(float(queue.time[row, column])) + before + after)
    steps = int(weights.sum())
    departures = [ticks(due * steps) * (1 - take[size][0]) for size, due in step.dues().items()]
    model.minimize(cp_model.LinearExpr.weighted_sum(ends, weights.tolist()) + sum(departures))

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = WORK_PER_SECOND * time_limit
    solver.parameters.relative_gap_limit = GAP
    solver.parameters.log_search_progress = log is not None
    solver.parameters.log_to_stdout = False
    solver.log_callback = log
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):  # stopped before it had even read the hint
        return dict(start), "GREEDY", 1.0
    choice = {
        size: next(index for index, literal in enumerate(chosen) if solver.boolean_value(literal))
        for size, chosen in take.items()
    }
    best, bound = solver.objective_value, solver.best_objective_bound
    return choice, solver.status_name(status), (best - bound) / best if best else 0.0
