"""The shares of one buffer size: a piecewise-linear mixed-integer program over the rails' measured tables."""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from jaxcomm.errors import JaxcommError
from jaxcomm.planner.rail_times import Option

UNITS: Final = 1024  # shares are multiples of 1/UNITS, which floats hold exactly
TIE: Final = 1e-6  # of the best rail's time: what using a rail, or asking more of it, must save to be worth it
GAP: Final = 1e-3  # the solver stops when it is this close to its bound
SLICE: Final = 64 * 1024  # bytes of a slice as MPTCP would make it
SLICES: Final = 1024  # at most


class Load(NamedTuple):
    """What one rail gets: how it is used, and its share."""

    option: Option
    share: float

    def bytes(self, nbytes: int) -> float:
        """Its bytes of a buffer."""
        return nbytes * self.share


Split = tuple[Load, ...]


def seconds(split: Split, nbytes: int) -> float:
    """When the last rail is done; a rail that shares a call takes its `slowdown` times as long as alone."""
    if len(split) == 1:
        return split[0].option.seconds(nbytes)
    return max(load.option.together(load.bytes(nbytes)) for load in split)


def single(rails: Sequence[Sequence[Option]], nbytes: int) -> Option:
    """The rail that is fastest alone, used in the way that asks for least among the equally fast."""
    return min((option for options in rails for option in options), key=lambda option: option.seconds(nbytes))


def solve(rails: Sequence[Sequence[Option]], nbytes: int, cores: int | None) -> Split | None:
    """The shares that minimise the time of the slowest rail, slowdowns included; None: none beats the best rail.

    Binary variables say which piece of which option's curve a rail is on, if any, and integers how many units it gets
    there. The time is at least what each rail takes: linear on each piece, with all pieces of a rail in one inequality
    (the multiple choice model), as only one of them is not 0. SCIP solves it to 0.1 %.

    Args:
      rails: the options of every rail.
      nbytes: size of the buffer.
      cores: CPU cores that all rails may use together; None: no limit.

    Raises:
      JaxcommError: OR-Tools is not installed.

    Source of the model: Croxton, Gendron and Magnanti, "A Comparison of Mixed-Integer Programming Models for Nonconvex
    Piecewise Linear Cost Minimization Problems", Management Science 49(9), 2003.
    """
    try:
        from ortools.linear_solver import pywraplp
    except ModuleNotFoundError:
        raise JaxcommError("splitting over rails needs the package ortools.\n  Cure: pip install ortools.") from None
    best = single(rails, nbytes).seconds(nbytes)
    solver = pywraplp.Solver.CreateSolver("SCIP")
    end = solver.NumVar(0, 1, "end")  # in times of the best rail
    placed, ties, used_cores = [], [], []
    for options in rails:
        spent, chosen = [], []
        for asked, option in enumerate(options):
            for low, high in pieces(option, nbytes, best):
                first, last = (option.together(nbytes * units / UNITS) / best for units in (low, high))
                slope = (last - first) / (high - low) if high > low else 0.0
                here, units = solver.BoolVar(""), solver.IntVar(0, high, "")
                solver.Add(units >= low * here)
                solver.Add(units <= high * here)
                spent.append((first - slope * low) * here + slope * units)
                chosen.append(here)
                ties.append(TIE * (asked + 1) * here)
                used_cores.append((option.cores or 0) * here)
                placed.append((option, here, units))
        if chosen:
            solver.Add(sum(chosen) <= 1)
            solver.Add(end >= sum(spent))
    if not placed:
        return None
    solver.Add(sum(units for _, _, units in placed) == UNITS)
    if cores is not None:
        solver.Add(sum(used_cores) <= cores)
    solver.Minimize(end + sum(ties))
    limits = pywraplp.MPSolverParameters()
    limits.SetDoubleParam(pywraplp.MPSolverParameters.RELATIVE_MIP_GAP, GAP)
    status = solver.Solve(limits)
    if status == pywraplp.Solver.INFEASIBLE:  # no split ends before the best rail
        return None
    if status != pywraplp.Solver.OPTIMAL:
        raise JaxcommError(f"splitting {nbytes} bytes over rails failed: SCIP ended with status {status}.")
    taken = [(option, round(units.solution_value())) for option, _, units in placed]
    split = tuple(Load(option, count / UNITS) for option, count in taken if count)
    return split if len(split) > 1 else None


def pieces(option: Option, nbytes: int, limit: float) -> Iterator[tuple[int, int]]:
    """The units from `low` to `high`, both included, over which an option's time is linear and within the limit."""
    low = 1
    for size in (*option.sizes, math.inf):
        most = min(UNITS, math.floor(min(1.0, size / nbytes) * UNITS))
        fits = range(low, most + 1)
        high = low - 1 + bisect.bisect_right(fits, limit, key=lambda units: option.together(nbytes * units / UNITS))
        if high >= low:
            yield low, high
        low = max(low, most + 1)


def fixed_ratio(rails: Sequence[Sequence[Option]], nbytes: int) -> float:
    """Seconds if every rail gets a share by its nominal bandwidth, at every size: Liu, Vishnu and Panda's MRIB.

    Where the profile has no nominal bandwidth the rate at the last sample takes its place. Rails are used without
    virtual ones, and with as many cores as are best for each.
    """
    plain = [_plain(options, nbytes) for options in rails]
    rates = [option.rail.bytes_per_s or option.sizes[-1] / option.times[-1] for option in plain]
    if len(plain) == 1:
        return plain[0].seconds(nbytes)
    return max(option.together(nbytes * rate / sum(rates)) for option, rate in zip(plain, rates, strict=True))


def slicing(rails: Sequence[Sequence[Option]], nbytes: int) -> float:
    """Seconds if slices go one by one to whichever rail is idle first, as MPTCP's do: each slice is a call of its own.

    Slices of 64 KiB, or of 1/1024 of a larger buffer; rails are used as for a fixed ratio.
    """
    count = min(SLICES, math.ceil(nbytes / SLICE))
    plain = [_plain(options, nbytes) for options in rails]
    alone = len(plain) == 1 or count == 1
    times = [option.seconds(nbytes / count) if alone else option.together(nbytes / count) for option in plain]
    idle = [(0.0, index) for index in range(len(plain))]
    end = 0.0
    for _ in range(count):
        start, index = heapq.heappop(idle)
        end = max(end, start + times[index])
        heapq.heappush(idle, (start + times[index], index))
    return end


def lower_bound(rails: Sequence[Sequence[Option]], nbytes: int) -> float:
    """Seconds that no split can beat: every rail at the best rate of any size up to this one, none slowed down."""
    rate = sum(max(option.best_rate(nbytes) for option in options) for options in rails)
    least = min(option.times[0] for options in rails for option in options)
    return max(nbytes / rate, least)


def _plain(options: Sequence[Option], nbytes: int) -> Option:
    return min((option for option in options if option.channels == 1), key=lambda option: option.seconds(nbytes))
