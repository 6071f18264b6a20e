"""Clocks for sums in a jitted loop: the core's record of each sum, or the host's clock around the loop.

The host's clock is used where XLA's own collectives run the sums. Between two sums all ranks pass a barrier (a maximum
of one element), so the next sum begins after the previous sum has ended on all ranks. Before each timed loop, a loop
without sums runs the same barriers, buffer writes and delays. The difference of the two loops' times is therefore the
time of the sums. Clocks of different processes are not compared, and JAX's dispatch cancels out.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from jaxcomm.measure import psum_loop
from jaxcomm.plan import Plan
from jaxcomm.profile.timed_schedules import TimedExecutor

LEAST_S: Final = 1e-6  # lower limit, in seconds, of a sum's time by the host's clock
_FEW_BYTES: Final = 1 << 20  # sums of at most this many bytes per rank are too short to be timed in few calls
_MORE: Final = 4  # such short sums get this many times as many calls, if no rank is late

Floats = NDArray[np.float64]


class Clock(ABC):
    """Measures a sum's time in a loop of sums. All ranks' processes must call the same methods in the same order."""

    @abstractmethod
    def loop(self, plan: Plan) -> Any:
        """A jitted, donated loop of psums under a plan. It takes buffers, each rank's wait, and the number of calls."""

    @abstractmethod
    def turn(self, loop: Any, x: Any, seconds: Floats, calls: int, late: int | None) -> tuple[Any, float, float]:
        """Runs `loop` for one turn; returns the buffers, a sum's seconds, and the seconds from first to last arrival.

        The sum's seconds count from the last arrival to the end of the sum, in the process that ends last. The arrivals
        differ because ranks do not finish writing their buffers at the same time.

        Args:
          loop: a loop of this clock.
          x: the buffers.
          seconds: how long each rank waits before each sum.
          calls: number of calls in the turn.
          late: the rank that is made late; None: no rank is made late.
        """

    @staticmethod
    def of(executor: TimedExecutor, mesh: Any) -> Clock:
        """The clock for an executor's sums over the ranks of a mesh."""
        return HostClock(mesh) if executor == "xla" else CoreClock(mesh)


class CoreClock(Clock):
    """A clock whose time for a turn is the median of the core's times of the turn's calls.

    If a turn has several calls, the first call does not count. If a rank is made late, only the calls in which this
    rank arrived last count; if there are no such calls, all calls but the first count.
    """

    def __init__(self, mesh: Any) -> None:
        from jaxcomm.collectives.permutes import lowering as permutes

        permutes.require_core()
        self._mesh = mesh

    def loop(self, plan: Plan) -> Any:
        """See `Clock.loop`."""
        return psum_loop.timed_loop(self._mesh, plan)

    def turn(self, loop: Any, x: Any, seconds: Floats, calls: int, late: int | None) -> tuple[Any, float, float]:
        """See `Clock.turn`."""
        from jaxcomm import ffi

        ffi.reset_stats()
        x = loop(x, seconds, calls).block_until_ready()
        site = psum_loop.recorded(calls)
        first = int(calls > 1)
        after, arrivals = np.array(site["after_arrival_s"])[first:], np.array(site["arrivals"])[first:]
        last = np.argmax(arrivals, axis=1) == late
        kept = after[last] if late is not None and last.any() else after
        return x, max(1e-9, longest(float(np.median(kept)))), longest(float(np.median(np.ptp(arrivals, axis=1))))


class HostClock(Clock):
    """A clock whose time for a turn is the mean time of the turn's calls, by the host's clock."""

    def __init__(self, mesh: Any) -> None:
        self._mesh = mesh
        self._without = psum_loop.barrier_loop(mesh, None)
        self._warm: set[tuple[int, ...]] = set()  # shapes for which `_without` is compiled

    def loop(self, plan: Plan) -> Any:
        """See `Clock.loop`."""
        return psum_loop.barrier_loop(self._mesh, plan)

    def turn(self, loop: Any, x: Any, seconds: Floats, calls: int, late: int | None) -> tuple[Any, float, float]:
        """See `Clock.turn`."""
        calls *= _MORE if late is None and x.nbytes <= _FEW_BYTES * self._mesh.size else 1
        if x.shape not in self._warm:
            x = self._without(x, np.zeros_like(seconds), 1).block_until_ready()
            self._warm.add(x.shape)
        times = []
        for each in (self._without, loop):
            start = time.perf_counter()
            x = each(x, seconds, calls).block_until_ready()
            times.append(time.perf_counter() - start)
        return x, max(LEAST_S, longest((times[1] - times[0]) / calls)), 0.0  # all ranks start at once, at the barrier


def agreed(value: float) -> float:
    """Returns the first process's value in all processes."""
    return float(gathered(value)[0, 0])


def longest(value: float) -> float:
    """Returns the largest of all processes' values in all processes."""
    return float(gathered(value).max())


def gathered(*values: float) -> Floats:
    """The values of all processes, one row for each process."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return np.array([values])
    rows: Any = multihost_utils.process_allgather(np.array(values, np.float64))
    return np.asarray(rows, np.float64)
