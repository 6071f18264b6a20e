"""Times whole schedules beside each other on the executor that runs them: with nobody late, and with one rank late."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from jaxcomm.errors import PlanError
from jaxcomm.log import say
from jaxcomm.measure import psum_loop
from jaxcomm.measure.clocks import Clock, agreed
from jaxcomm.plan import Plan
from jaxcomm.plan.timed import single, timed_spec
from jaxcomm.profile.timed_schedules import ScheduleSample, TimedExecutor, TimedKind, TimedSchedule, TimedSchedules

SIZES: Final = tuple(2**power for power in (12, 16, 19, 22, 23, 24, 25, 26))
JOB_SIZES: Final = tuple(2**power for power in (12, 16, 19, 22, 24, 26))  # compiling takes longer there
SECONDS: Final = 50.0
MULTIPLES: Final = (1, 4, 16)  # chunks of the straggler schedule, in times of the other ranks
LATE_JOINS: Final = (1, 4)  # chunks of the late join by whole collectives

FINALISTS: Final = 4  # the default and the schedules that were fastest after a late rank, which have more turns
FEWEST: Final = 3  # turns of each schedule
FEWEST_OF_FINALISTS: Final = 5  # all of which must gain, for a gain that is no chance by 95 %
MOST: Final = 10  # if the time suffices
_ROUNDS: Final = 1 + FEWEST + 1  # that a size takes at least: compiling, all schedules' turns, the finalists' others
_CALLS: Final = 2  # of one turn that count; the first one of each does not
_FEW_BYTES: Final = 1 << 20  # up to which a round does not take longer for more bytes
_LATE: Final = 1.1  # times as late as a call takes, so that the early ranks finish what they can
LEAST_LATE_S: Final = 0.01  # long enough for threads to sleep
MOST_LATE_S: Final = 0.02  # if the schedule takes less


class Name(NamedTuple):
    """A schedule that is timed: its executor, its kind, and its chunks where these can be chosen."""

    executor: TimedExecutor
    kind: TimedKind
    chunks: int | None


class TurnTimes(NamedTuple):
    """Seconds from the last arrival to the end in the process that ends last, the median call of each turn.

    In `together` nobody is late, in `late` one rank, in the last turn by `late_by_s`.
    """

    together: list[float]
    late: list[float]
    late_by_s: float


def time_schedules(
    mesh: Any,
    executor: TimedExecutor,
    late: Mapping[int, float],
    sizes: Sequence[int] = SIZES,
    *,
    with_xla: bool = False,
    seconds: float = SECONDS,
    progress: Callable[[float], object] = lambda share: None,
) -> TimedSchedules:
    """Times direct, ring, halving and doubling, broadcast, join, and the straggler schedule at three numbers of chunks;
    on XLA's collectives also `lax.psum`, and late joins.

    Of each executor the default and the three that are fastest after the late rank have more turns than the others:
    plans choose among them.

    Args:
      mesh: the ranks, along one axis "data"; all of their processes call this.
      executor: the one that runs their sums.
      late: seconds by rank by which ranks are late in training. The latest of them is made late, the last rank if there
        is none, by at least 10 and at most 20 ms; a schedule that takes longer is timed with a rank that is later.
      sizes: bytes per rank; the largest are left out as far as the time does not suffice, but never the first.
      with_xla: whether XLA's collectives take turns with an executor of ours; then the host's clock times all.
      seconds: for all of it, roughly.
      progress: called with the finished share, from 0 to 1.

    Raises:
      JaxcommError: a process ended, or missed the deadline.
    """
    sizes = sorted({size // 4 * 4 for size in sizes})
    from jaxcomm.collectives import permutes

    executors: list[TimedExecutor] = [executor, "xla"] if with_xla and executor != "xla" else [executor]
    if executor != "xla":
        permutes.require_core()
    latest = max(late, key=lambda rank: late[rank], default=mesh.size - 1)
    plans = {name: plan for each in executors for name, plan in _plans(mesh.size, latest, each, sizes[-1]).items()}
    found: dict[Name, list[ScheduleSample]] = {name: [] for name in plans}
    late_s = min(MOST_LATE_S, max(LEAST_LATE_S, late.get(latest, 0.0)))
    begun, pauses_s = time.monotonic(), len(plans) * (1 + _CALLS) * late_s
    round_s, before = pauses_s, _FEW_BYTES
    for index, size in enumerate(sizes):
        left = agreed(seconds - (time.monotonic() - begun))
        busy_s = max(0.0, round_s - pauses_s)
        rounds_s = [pauses_s + busy_s * max(1.0, each / before) for each in sizes[index:]]
        if index and _ROUNDS * rounds_s[0] > left:
            break
        spare = max(0.0, left - _ROUNDS * sum(rounds_s)) / len(rounds_s) if index else 0.0
        for_size = _ROUNDS * rounds_s[0] + spare
        timed, round_s = take_turns(
            mesh,
            [*plans.values()],
            size,
            latest,
            executor=executors[-1],
            seconds=for_size,
            least_s=late_s,
            finalists=FINALISTS,
            groups=[executors.index(name.executor) for name in plans],
        )
        before = max(size, _FEW_BYTES)
        for name, times in zip(plans, timed, strict=True):
            found[name].append(ScheduleSample(bytes=size, **times._asdict()))
        progress((index + 1) / len(sizes))
    tables = [
        TimedSchedule(
            kind=name.kind,
            chunks=name.chunks,
            executor="xla" if name.executor == "xla" != executor else None,
            samples=each,
        )
        for name, each in found.items()
    ]
    return TimedSchedules(executor=executor, late=latest, schedules=tables)


def schedules_of(ranks: int, executor: TimedExecutor = "memory") -> list[tuple[TimedKind, int | None]]:
    """The kinds of schedule that are timed on an executor, the default first, each with its chunks."""
    others = ranks - 1
    plain: list[tuple[TimedKind, int | None]] = [("direct", None), ("ring", None), ("halving_doubling", None)]
    joins: list[tuple[TimedKind, int | None]] = [("direct_join", others)] * (others > 1)
    lax: list[tuple[TimedKind, int | None]] = [("lax", None)]
    whole: list[tuple[TimedKind, int | None]] = [("late_join", chunks) for chunks in LATE_JOINS]
    own = [*plain, ("broadcast", None), *joins, *(("straggler", others * multiple) for multiple in MULTIPLES)]
    return lax + own + whole if executor == "xla" else own


def take_turns(
    mesh: Any,
    plans: Sequence[Plan],
    nbytes: int,
    late: int,
    *,
    executor: TimedExecutor = "memory",
    seconds: float,
    late_s: float | None = None,
    least_s: float = LEAST_LATE_S,
    least: int = FEWEST,
    most: int = MOST,
    finalists: int | None = None,
    groups: Sequence[int] | None = None,
) -> tuple[list[TurnTimes], float]:
    """Times plans beside each other: every round each of them has a turn, with nobody late and with one rank late.

    All work on the same buffers, which each rank writes before each call. All processes of the mesh call it.

    Args:
      mesh: the ranks, along one axis "data".
      plans: the plans to time; all for as many ranks.
      nbytes: bytes of one rank's f32 buffer.
      late: the late rank.
      executor: the one that runs the plans' sums: times of "xla" are by the host's clock, also where some plans run on
        others; those of others by the core's.
      seconds: for all of it, roughly.
      late_s: by how long that rank comes after the others; None: as long as the schedule takes and a little more, at
        least `least_s`.
      least_s: see `late_s`.
      least: turns of each plan, however long they take.
      most: turns of finalists, if the time suffices; at least 5 or `most`.
      finalists: plans that have more than `least` turns: the first, and those that were fastest after the late rank;
        None: all.
      groups: by plan the number of its group, each of which has finalists of its own; None: all are one group.

    Returns:
      The times of each plan, and the seconds of a round of all.
    """
    from jaxcomm import errors

    begun, clock = time.monotonic(), Clock.of(executor, mesh)
    loops = [clock.loop(plan) for plan in plans]
    x = psum_loop.zeros(mesh, nbytes)
    nobody = np.zeros(mesh.size)
    calls = 1 + _CALLS
    rows: list[list[tuple[float, float, float]]] = [[] for _ in plans]
    running, rounds, round_s = [*range(len(plans))], least, 0.0
    with errors.translated():
        for loop in loops:  # compiles it, and touches its memory
            x = loop(x, nobody, 1).block_until_ready()
        while len(rows[0]) < rounds:
            started = time.monotonic()
            for index in running:
                x, together, apart_s = clock.turn(loops[index], x, nobody, calls, None)
                by_s = max(least_s, _LATE * together) if late_s is None else late_s
                one = np.where(np.arange(mesh.size) == late, by_s + apart_s, 0.0)
                x, after, _ = clock.turn(loops[index], x, one, calls, late)
                rows[index].append((together, after, by_s))
            round_s = round_s or agreed(time.monotonic() - started)
            if len(rows[0]) == least:
                running = _finalists(rows, finalists or len(plans), groups or [0] * len(plans))
                left, share = agreed(seconds - (time.monotonic() - begun)), len(running) / len(plans)
                rounds = int(min(most, max(least, FEWEST_OF_FINALISTS, least + left // (round_s * share))))
    columns = [[list(column) for column in zip(*row, strict=True)] for row in rows]
    return [TurnTimes(together, after, late_by[-1]) for together, after, late_by in columns], round_s


def _finalists(rows: Sequence[Sequence[tuple[float, float, float]]], count: int, groups: Sequence[int]) -> list[int]:
    """Of each group the first plan, and the others with the least medians with one rank late, `count` in all."""
    after = [float(np.median([row[1] for row in each])) for each in rows]
    found: list[int] = []
    for group in {*groups}:
        first, *others = [index for index, each in enumerate(groups) if each == group]
        found += [first, *sorted(others, key=lambda index: after[index])[: count - 1]]
    return sorted(found)


def _plans(ranks: int, late: int, executor: TimedExecutor, most_bytes: int) -> dict[Name, Plan]:
    """A plan for each schedule that is timed on an executor; without those whose template needs OR-Tools, where that is
    not installed, and without those that the executor would leave to another one."""
    from jaxcomm.collectives.permute_programs import why_not

    found = {}
    for kind, chunks in schedules_of(ranks, executor):
        try:
            plan = single(timed_spec(kind, chunks), ranks, late, "xla" if executor == "xla" and kind != "lax" else None)
            reasons = {why_not(plan.schedules[0], size) for size in (0, most_bytes)} if executor == "xla" else {}
            if reason := next(filter(None, reasons), None):
                say(f"{kind} is not timed: {reason}")
            else:
                found[Name(executor, kind, chunks)] = plan
        except PlanError as error:
            say(f"{kind} is not timed: {error}")
    return found
