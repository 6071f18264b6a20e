"""Measures the times of whole schedules on their executor, in turns: with no rank late, and with one rank late."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from jaxcomm.errors import PlanError
from jaxcomm.log import say, say_once
from jaxcomm.measure import psum_loop
from jaxcomm.measure.clocks import Clock, agreed
from jaxcomm.plan import Plan
from jaxcomm.plan.timed import single, timed_spec
from jaxcomm.profile.cluster import Topology
from jaxcomm.profile.timed_schedules import (
    LeftOut,
    ScheduleName,
    ScheduleSample,
    TimedExecutor,
    TimedSchedule,
    TimedSchedules,
)

SIZES: Final = tuple(2**power for power in (12, 16, 19, 22, 23, 24, 25, 26))
JOB_SIZES: Final = tuple(2**power for power in (12, 16, 19, 22, 24, 26))  # fewer sizes: in a job, compiling is slower
SECONDS: Final = 50.0
MULTIPLES: Final = (4, 1, 16)  # numbers of chunks of the straggler schedule, divided by the number of ranks minus 1
LATE_JOINS: Final = (1, 4)  # numbers of chunks of the schedule `late_join`, which XLA runs as whole collectives

FINALISTS: Final = 4  # number of schedules per executor that get more turns: the default and the fastest others
FEWEST: Final = 3  # minimum number of turns of each schedule
FEWEST_OF_FINALISTS: Final = 5  # minimum turns of a finalist; gains in all five turns are significant at the 95 % level
MOST: Final = 10  # maximum number of turns of a finalist
LEAST_TURNS: Final = 2  # number of turns of each schedule if the time does not suffice for FEWEST
LEAST_SCHEDULES: Final = 2  # minimum number of schedules: the default and the most promising one
MUCH_LONGER: Final = 1.5  # sizes are left out if LEAST_TURNS at all sizes take more than this many times `seconds`
SLOW_S: Final = 0.05  # longer calls run once per turn: cold caches and thread wake-ups hardly change their times
_CALLS: Final = 2  # timed calls in a turn of shorter calls; one untimed call precedes them
_FEW_BYTES: Final = 1 << 20  # calls with smaller buffers are assumed to take as long as calls with this size
_LATE: Final = 1.1  # lateness divided by a call's time; above 1, so that early ranks finish all they can do alone
LEAST_LATE_S: Final = 0.01  # minimum lateness in seconds, long enough that waiting threads go to sleep
MOST_LATE_S: Final = 0.02  # upper limit of `Lateness.least_s`

Candidates = Callable[[int], Sequence[ScheduleName]]
_single: Final = functools.lru_cache(maxsize=256)(single)  # cached: one plan serves all sizes


class Name(NamedTuple):
    """A schedule that is timed, and its executor."""

    executor: TimedExecutor
    schedule: ScheduleName


class TurnTimes(NamedTuple):
    """A plan's times, one per turn: seconds of a call from the last arrival to the end in the process that ends last.

    In the turns of `together` no rank is late. In the turns of `late` one rank is late; `late` is empty if no rank is
    made late. `late_by_s` is the lateness in the last turn.
    """

    together: list[float]
    late: list[float]
    late_by_s: float


class Lateness(NamedTuple):
    """The rank that is made late. It is late by a little more than a call's time, between `least_s` and `most_s`."""

    rank: int
    least_s: float = LEAST_LATE_S
    most_s: float = math.inf

    def seconds(self, call_s: float) -> float:
        """Returns the lateness for a schedule that takes `call_s` with no rank late."""
        return max(self.least_s, min(_LATE * call_s, self.most_s))

    @classmethod
    def of(cls, late: Mapping[int, float], ranks: int) -> Lateness:
        """The lateness of one rank: the rank with the longest time in `late`, or the last rank if `late` is empty.

        The rank is late by a little more than a call takes. `least_s` is the rank's time in `late`, clipped to [10 ms,
        20 ms].
        """
        rank = max(late, key=lambda each: late[each], default=ranks - 1)
        return cls(rank, min(MOST_LATE_S, max(LEAST_LATE_S, late.get(rank, 0.0))))


class Offers(NamedTuple):
    """The schedules worth timing.

    `candidates` returns the schedules for a size: the default first, then the schedules that are expected to be the
    fastest. Without `candidates`, `schedules_of` returns the schedules. `topology` is the network, for schedules that
    are made for hosts.
    """

    candidates: Candidates | None = None
    topology: Topology | None = None


_ALL: Final = Offers()


def time_schedules(
    mesh: Any,
    executors: Sequence[TimedExecutor],
    lateness: Lateness | None,
    sizes: Sequence[int],
    *,
    may_skip: bool = True,
    offers: Offers = _ALL,
    seconds: float = SECONDS,
    progress: Callable[[float], object] = lambda share: None,
) -> TimedSchedules:
    """Measures the times of whole schedules in turns.

    The largest size comes first, because training runs spend most of their time on large buffers. If the time does not
    suffice for all schedules, only the first candidates are timed at each size, at least two. If two schedules per size
    would take much longer than `seconds`, the largest sizes are left out. For each executor, the default and the three
    fastest other schedules get more turns, because plans choose among these schedules.

    Args:
      mesh: the ranks, along one axis "data"; all processes of these ranks call this function.
      executors: the executor that runs the ranks' sums, followed by "xla" if XLA's collectives take turns with this
        executor. With "xla", all sums are timed by the host's clock.
      lateness: the rank to make late; None: no rank is made late.
      sizes: bytes per rank.
      may_skip: whether sizes may be left out.
      offers: the schedules worth timing.
      seconds: time for the whole measurement, roughly.
      progress: called with the finished share, from 0 to 1.

    Raises:
      JaxcommError: a process ended, or missed the deadline.
    """
    from jaxcomm.collectives.permutes import lowering as permutes
    from jaxcomm.measure.load import OtherPrograms

    executor = executors[0]
    if executor != "xla":
        permutes.require_core()
    import jax

    late, first = lateness.rank if lateness else mesh.size - 1, jax.process_index() == 0
    sizes = sorted({size // 4 * 4 for size in sizes})
    offered = {
        size: {
            Name(each, name): plan
            for each in executors
            for name, plan in _plans(mesh.size, late, each, size, _ALL if each == "xla" else offers)
        }
        for size in sizes
    }
    load, begun = OtherPrograms(), time.monotonic()
    budget = _Budget.of(mesh, next(iter(offered[sizes[-1]].values())), sizes[-1], executors[-1], lateness)
    while len(sizes) > 1 and may_skip and sum(map(budget.least_s, sizes)) > MUCH_LONGER * seconds:
        if first:
            say(f"{sizes[-1]} bytes per rank are not timed; to time them, raise --seconds or give --sizes.")
        del sizes[-1]
    found: dict[Name, list[ScheduleSample]] = {}
    left_out: list[LeftOut] = []
    done = 0.0
    for index in reversed(range(len(sizes))):
        size, plans = sizes[index], offered[sizes[index]]
        left = agreed(seconds - (time.monotonic() - begun))
        shares = [*map(budget.least_s, sizes[: index + 1])]
        for_size = shares[-1] + (left - sum(shares)) / len(shares)
        count = len(plans) if len(executors) > 1 else budget.count(size, len(plans), for_size)
        if count < len(plans):
            left_out.append(LeftOut(bytes=size, timed=count, offered=len(plans)))
        names = [*plans][:count]
        timed = take_turns(
            mesh,
            [plans[name] for name in names],
            size,
            lateness,
            executor=executors[-1],
            seconds=for_size,
            turns=TurnCounts(budget.turns(size, count, for_size), finalists=FINALISTS),
            groups=[executors.index(name.executor) for name in names],
        )
        for name, times in zip(names, timed, strict=True):
            found.setdefault(name, []).insert(0, ScheduleSample(bytes=size, **times._asdict()))
        done += shares[-1] / sum(shares) * (1 - done)
        progress(done)
    tables = [
        TimedSchedule(
            **name.schedule.model_dump(),
            executor="xla" if name.executor == "xla" != executor else None,
            samples=each,
        )
        for name, each in found.items()
    ]
    spent = agreed(time.monotonic() - begun)
    more = sum(budget.seconds(each.bytes, each.offered - each.timed, FEWEST_OF_FINALISTS) for each in left_out)
    return TimedSchedules(
        executor=executor,
        late=late,
        schedules=tables,
        left_out=left_out[::-1],
        seconds_for_all=spent + more if left_out else 0.0,
        others=load.share(),
    )


@dataclass(frozen=True)
class _Budget:
    """Predicts the seconds of turns from a single call of the largest size, timed before all turns."""

    compile_s: float
    call_s: float
    nbytes: int
    lateness: Lateness | None

    @classmethod
    def of(cls, mesh: Any, plan: Plan, nbytes: int, executor: TimedExecutor, lateness: Lateness | None) -> _Budget:
        """Compiles the plan's schedule and measures the time of one call.

        If the first call is short, the time of a second call is used, because the first call takes longest.
        """
        x, clock = psum_loop.zeros(mesh, nbytes), Clock.of(executor, mesh)

        def spent(loop: Any, calls: int) -> float:
            nonlocal x
            start = time.monotonic()
            x = loop(x, np.zeros(mesh.size), calls).block_until_ready()
            return agreed(time.monotonic() - start)

        spent(clock.loop(plan), 0)  # not timed, because a process's first compilation takes longer than later ones
        loop = clock.loop(plan)
        compile_s, call_s = spent(loop, 0), spent(loop, 1)
        return cls(compile_s, spent(loop, 1) if call_s < 10 * SLOW_S else call_s, nbytes, lateness)

    def seconds(self, size: int, schedules: int, turns: int) -> float:
        """Returns the seconds that `schedules` schedules take at a size, with `turns` turns each."""
        call_s = self._call_s(size)
        calls = calls_of(call_s)
        late_s = self.lateness.seconds(call_s) + call_s if self.lateness else 0.0
        return schedules * (self.compile_s + call_s + turns * calls * (call_s + late_s))

    def least_s(self, size: int) -> float:
        """Returns the seconds for the minimum number of schedules, with the minimum number of turns each."""
        return self.seconds(size, LEAST_SCHEDULES, LEAST_TURNS)

    def count(self, size: int, offered: int, seconds: float) -> int:
        """Returns the number of schedules for which the time suffices, but at least two."""
        fits = [each for each in range(1, offered + 1) if self.seconds(size, each, FEWEST) <= seconds]
        return max(min(LEAST_SCHEDULES, offered), *fits, 1)

    def turns(self, size: int, schedules: int, seconds: float) -> int:
        """Returns the minimum number of turns of each schedule: FEWEST, or LEAST_TURNS if the time does not suffice."""
        return FEWEST if self.seconds(size, schedules, FEWEST) <= seconds else LEAST_TURNS

    def _call_s(self, size: int) -> float:
        return self.call_s * max(size, _FEW_BYTES) / max(self.nbytes, _FEW_BYTES)


def calls_of(call_s: float) -> int:
    """The number of calls in one turn, for calls that take `call_s`."""
    return 1 if call_s > SLOW_S else 1 + _CALLS


def schedules_of(ranks: int, executor: TimedExecutor = "memory") -> list[ScheduleName]:
    """The schedules to time without `candidates`: the default first, then those for a late rank, last the others."""
    others = ranks - 1
    default, *plain = [ScheduleName(kind=kind) for kind in ("direct", "ring", "halving_doubling")]
    lax = [ScheduleName(kind="lax")] * (executor == "xla")
    whole = [ScheduleName(kind="late_join", chunks=chunks) for chunks in LATE_JOINS] * (executor == "xla")
    stragglers = [ScheduleName(kind="straggler", chunks=others * multiple) for multiple in MULTIPLES]
    joins = [ScheduleName(kind="broadcast"), *[ScheduleName(kind="direct_join", chunks=others)] * (others > 1)]
    return [*lax, default, *whole, *stragglers, *joins, *plain]


class TurnCounts(NamedTuple):
    """Numbers of turns.

    Each plan gets `least` turns, however long they take. A finalist gets at least 5 turns (`least` if calls are long),
    and more turns, up to `most`, if the time suffices. There are `finalists` finalists: the first plan, and the fastest
    of the others. If `finalists` is None, all plans are finalists.
    """

    least: int = FEWEST
    most: int = MOST
    finalists: int | None = None


_USUAL: Final = TurnCounts()


def take_turns(
    mesh: Any,
    plans: Sequence[Plan],
    nbytes: int,
    lateness: Lateness | None,
    *,
    executor: TimedExecutor = "memory",
    seconds: float,
    turns: TurnCounts = _USUAL,
    groups: Sequence[int] | None = None,
) -> list[TurnTimes]:
    """Measures plans in turns of a few calls each.

    In every round each plan has one turn with no rank late and, if `lateness` is given, one turn with its rank late.
    All plans sum the same buffers. Each rank writes its buffer before each call. All processes of the mesh call this.

    Args:
      mesh: the ranks, along one axis "data".
      plans: the plans to time, all for the ranks of the mesh.
      nbytes: bytes of one rank's f32 buffer.
      lateness: the rank that is made late, and by how much; None: no rank is made late.
      executor: the executor of the plans. With "xla", all plans are timed by the host's clock, even plans for other
        executors. Otherwise they are timed by the core's clock.
      seconds: time for all turns, roughly.
      turns: the number of turns.
      groups: the group number of each plan; each group has its own finalists. None: all plans are one group.

    Returns:
      The times of each plan.
    """
    from jaxcomm import errors

    begun, clock = time.monotonic(), Clock.of(executor, mesh)
    loops = [clock.loop(plan) for plan in plans]
    x = psum_loop.zeros(mesh, nbytes)
    nobody = np.zeros(mesh.size)
    found = [TurnTimes([], [], 0.0) for _ in plans]
    running, rounds, calls = [*range(len(plans))], turns.least, 1
    with errors.translated():
        for loop in loops:
            x = loop(x, nobody, 0).block_until_ready()  # compiles the loop
            x, first_s, _ = clock.turn(loop, x, nobody, 1, None)  # an untimed turn touches new memory
            calls = calls_of(first_s)
        while len(found[0].together) < rounds:
            started = time.monotonic()
            for index in running:
                x, together, apart_s = clock.turn(loops[index], x, nobody, calls, None)
                found[index].together.append(together)
                calls = calls_of(together)
                if lateness:
                    by_s = lateness.seconds(together)
                    one = np.where(np.arange(mesh.size) == lateness.rank, by_s + apart_s, 0.0)
                    x, after, _ = clock.turn(loops[index], x, one, calls, lateness.rank)
                    found[index].late.append(after)
                    found[index] = found[index]._replace(late_by_s=by_s)
            if len(found[0].together) == turns.least:
                running = _finalists(found, turns.finalists or len(plans), groups or [0] * len(plans))
                round_s = agreed(time.monotonic() - started) * len(running) / len(plans)
                left = agreed(seconds - (time.monotonic() - begun))
                wanted = FEWEST_OF_FINALISTS if calls > 1 else turns.least  # times of long calls vary less
                rounds = int(min(turns.most, max(turns.least, wanted, turns.least + left // round_s)))
    return found


def _finalists(found: Sequence[TurnTimes], count: int, groups: Sequence[int]) -> list[int]:
    """The indices of `count` finalists per group: its first plan, and its other plans with the least median times."""
    after = [float(np.median(each.late or each.together)) for each in found]
    kept: list[int] = []
    for group in {*groups}:
        first, *others = [index for index, each in enumerate(groups) if each == group]
        kept += [first, *sorted(others, key=lambda index: after[index])[: count - 1]]
    return sorted(kept)


def _plans(
    ranks: int,
    late: int,
    executor: TimedExecutor,
    nbytes: int,
    offers: Offers,
) -> Iterator[tuple[ScheduleName, Plan]]:
    """Yields a plan for each schedule to time.

    Skips schedules that need OR-Tools if OR-Tools is not installed, and schedules that the executor would leave to
    another executor.
    """
    from jaxcomm.collectives.permutes.programs import why_not

    for name in offers.candidates(nbytes) if offers.candidates else schedules_of(ranks, executor):
        try:
            by_xla: Literal["xla"] | None = "xla" if executor == "xla" and name.kind != "lax" else None
            plan = _single(timed_spec(name), ranks, late, by_xla, offers.topology)
            reasons = {why_not(plan.schedules[0], size) for size in (0, nbytes)} if executor == "xla" else {}
            if reason := next(filter(None, reasons), None):
                say_once(f"{name.kind} is not timed: {reason}")
            else:
                yield name, plan
        except PlanError as error:
            say_once(f"{name.kind} is not timed: {error}")
