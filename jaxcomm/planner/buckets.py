"""Which gradient buckets of a step use the late rank's delay, and how much of each: one delay, shared by all of them.

The network works off a queue. Bucket b's precondition enters it when the others have the bucket, at r_b; the rest of
b's schedule when the late rank has it, at r_b + d. Whatever the order of service, such a queue is empty at

    E(d) = max over τ in {r_b} ∪ {r_b + d} of τ + Σ_{r_b >= τ} before_b + Σ_{r_b + d >= τ} after_b,

so the end of the step is linear in what is chosen, and one inequality per τ and delay states it exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxcomm.errors import JaxcommError
from jaxcomm.plan.values import Spec
from jaxcomm.profile import Bucket
from jaxcomm.simulate import Delays

SCENARIOS: Final = 32  # delays that the solver sees; more are averaged in groups of neighbours
TICKS: Final = 2**24  # the horizon in the solver's integers
WORK_PER_SECOND: Final = 0.2  # the solver's deterministic time, on the machine where it was measured
GAP: Final = 1e-4  # the solver stops when it is this close to its bound

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Log = Callable[[str], None] | None


class Option(NamedTuple):
    """A schedule for a bucket, with its seconds before and after the late rank's arrival."""

    spec: Spec
    before: float
    after: float


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
    step = _Step(buckets, options, min_gain)
    plain = dict.fromkeys(options, 0)
    few, weights = _scenarios(delays)
    start = _greedy(step, few, weights)
    choice, status, gap = _solve(step, few, weights, start, time_limit, seed, log)
    return Assignment(
        {size: options[size][index].spec for size, index in choice.items()},
        float(step.exposed(plain, delays.seconds).mean()),
        float(step.exposed(choice, delays.seconds).mean()),
        status,
        gap,
    )


class _Moments(NamedTuple):
    """The times τ of the module's formula, one row each and one column per delay.

    `before` and `after`: the first bucket of which the one and the other part enters the queue at τ or later.
    """

    time: Floats
    before: Ints
    after: Ints


class _Step:
    """The buckets in the order in which they are ready, and the options of their sizes."""

    def __init__(self, buckets: Sequence[Bucket], options: Mapping[int, Sequence[Option]], min_gain: float) -> None:
        order = sorted(buckets, key=lambda bucket: bucket.ready_s)
        self.sizes = [bucket.bytes for bucket in order]
        self.ready = np.array([bucket.ready_s for bucket in order])
        self.options = options
        counts = Counter(self.sizes)
        self.penalty = {size: min_gain * options[size][0].after * counts[size] for size in options}

    def moments(self, delays: Floats) -> _Moments:
        """Every τ for every delay."""
        ready = self.ready[:, None]
        first = np.searchsorted(self.ready, ready)
        late = _Moments(ready + delays, np.searchsorted(self.ready, ready + delays), first)
        early = _Moments(ready + 0 * delays, first, np.searchsorted(self.ready, ready - delays))
        both = (
            np.concatenate([np.broadcast_to(part, early.time.shape) for part in pair])
            for pair in zip(late, early, strict=True)
        )
        return _Moments(*both)

    def exposed(self, choice: Mapping[int, int], delays: Floats, moments: _Moments | None = None) -> Floats:
        """E(d) - r_last - d for each delay: how long the step waits for the network after the last gradient."""
        time, first_before, first_after = moments or self.moments(delays)
        taken = [self.options[size][choice[size]] for size in self.sizes]
        before, after = (np.append(np.cumsum(part[::-1])[::-1], 0.0) for part in _columns(taken))
        ends = (time + before[first_before] + after[first_after]).max(axis=0)
        return np.asarray(ends - self.ready[-1] - delays)

    def cost(self, choice: Mapping[int, int], delays: Floats, weights: Ints, moments: _Moments) -> float:
        """What the solver minimises: the weighted mean of `exposed`, plus what every departure from plain must save."""
        departures = sum(self.penalty[size] for size, index in choice.items() if index)
        return float(np.average(self.exposed(choice, delays, moments), weights=weights)) + departures


def _columns(options: Sequence[Option]) -> tuple[Floats, Floats]:
    return np.array([option.before for option in options]), np.array([option.after for option in options])


def _scenarios(delays: Delays) -> tuple[Floats, Ints]:
    groups = np.array_split(delays.seconds, min(SCENARIOS, len(delays.seconds)))
    return np.array([group.mean() for group in groups]), np.array([len(group) for group in groups])


def _greedy(step: _Step, delays: Floats, weights: Ints) -> dict[int, int]:
    """A good start: size by size, the largest first, the best option while the others stay, until nothing changes."""
    moments = step.moments(delays)
    choice = dict.fromkeys(sorted(step.options, reverse=True), 0)
    changed = True
    while changed:
        changed = False
        for size, old in choice.items():
            costs = [
                step.cost({**choice, size: index}, delays, weights, moments) for index in range(len(step.options[size]))
            ]
            best = int(np.argmin(costs))
            if costs[best] < costs[old]:
                choice[size], changed = best, True
    return choice


def _solve(
    step: _Step,
    delays: Floats,
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
    time, first_before, first_after = step.moments(delays)
    work = sum(max(option.before + option.after for option in step.options[size]) for size in step.sizes)
    tick = (float(time.max()) + work) / TICKS or 1.0

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

    left: dict[str, list[cp_model.IntVar]] = {}
    for part in ("before", "after"):
        sums = [model.new_constant(0)]
        for size in reversed(step.sizes):
            total = model.new_int_var(0, 2 * TICKS, "")
            one = [ticks(getattr(option, part)) for option in step.options[size]]
            model.add(total == sums[-1] + cp_model.LinearExpr.weighted_sum(take[size], one))
            sums.append(total)
        left[part] = sums[::-1]
    ends = [model.new_int_var(0, 2 * TICKS, "") for _ in delays]
    for column, end in enumerate(ends):
        for row in range(len(time)):
            before, after = left["before"][first_before[row, column]], left["after"][first_after[row, column]]
            model.add(end >= ticks(float(time[row, column])) + before + after)
    departures = [ticks(step.penalty[size] * weights.sum()) * (1 - chosen[0]) for size, chosen in take.items()]
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
