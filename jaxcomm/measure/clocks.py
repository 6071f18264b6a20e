"""Clocks of sums in a jitted loop: the core's record of each, or the host's clock about the loop.

The host's clock serves where XLA's own collectives run the sums. Between two sums all ranks pass a barrier, a
maximum of one element, so that the next sum begins once all have ended; a loop without the sums, run just before, takes
as long as these barriers, the ranks' own parts and their lateness, and the rest is the sums'. No clocks are compared,
and JAX's dispatch of the loop counts in neither.
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

LEAST_S: Final = 1e-6  # the least time that the host's clock measures
_FEW_BYTES: Final = 1 << 20  # smaller sums take so little that several must be timed together
_MORE: Final = 4  # times as many, where no rank is late

Floats = NDArray[np.float64]


class Clock(ABC):
    """Times the sums of loops; all processes of the ranks call it alike."""

    @abstractmethod
    def loop(self, plan: Plan) -> Any:
        """A jitted, donated loop of psums under a plan, of buffers, seconds by rank and calls."""

    @abstractmethod
    def turn(self, loop: Any, x: Any, seconds: Floats, calls: int, late: int | None) -> tuple[Any, float, float]:
        """The buffers; the seconds of a sum from the last arrival to the end in the process that ends last; and the
        seconds between the first and the last arrival, as ranks do not end writing their buffers at once.

        Args:
          loop: of this clock.
          x: the buffers.
          seconds: that each rank waits before each sum.
          calls: of the turn.
          late: the rank that is made late; None: none is.
        """

    @staticmethod
    def of(executor: TimedExecutor, mesh: Any) -> Clock:
        """The clock for an executor's sums over the ranks of a mesh."""
        return HostClock(mesh) if executor == "xla" else CoreClock(mesh)


class CoreClock(Clock):
    """The core's own times: the median call of a turn but its first, of those to which the late rank came last."""

    def __init__(self, mesh: Any) -> None:
        from jaxcomm.collectives import permutes

        permutes.require_core()
        self._mesh = mesh

    def loop(self, plan: Plan) -> Any:
        """As `Clock.loop`."""
        return psum_loop.timed_loop(self._mesh, plan)

    def turn(self, loop: Any, x: Any, seconds: Floats, calls: int, late: int | None) -> tuple[Any, float, float]:
        """As `Clock.turn`."""
        from jaxcomm import ffi

        ffi.reset_stats()
        x = loop(x, seconds, calls).block_until_ready()
        site = psum_loop.recorded(calls)
        after, arrivals = np.array(site["after_arrival_s"])[1:], np.array(site["arrivals"])[1:]
        last = np.argmax(arrivals, axis=1) == late
        kept = after[last] if late is not None and last.any() else after
        return x, max(1e-9, longest(float(np.median(kept)))), longest(float(np.median(np.ptp(arrivals, axis=1))))


class HostClock(Clock):
    """The mean of a turn's calls, by the host's clock."""

    def __init__(self, mesh: Any) -> None:
        self._mesh = mesh
        self._without = psum_loop.barrier_loop(mesh, None)
        self._warm: set[tuple[int, ...]] = set()  # shapes for which that loop is compiled

    def loop(self, plan: Plan) -> Any:
        """As `Clock.loop`."""
        return psum_loop.barrier_loop(self._mesh, plan)

    def turn(self, loop: Any, x: Any, seconds: Floats, calls: int, late: int | None) -> tuple[Any, float, float]:
        """As `Clock.turn`."""
        calls *= _MORE if late is None and x.nbytes <= _FEW_BYTES * self._mesh.size else 1
        if x.shape not in self._warm:
            x = self._without(x, np.zeros_like(seconds), 1).block_until_ready()
            self._warm.add(x.shape)
        times = []
        for each in (self._without, loop):
            start = time.perf_counter()
            x = each(x, seconds, calls).block_until_ready()
            times.append(time.perf_counter() - start)
        return x, max(LEAST_S, longest((times[1] - times[0]) / calls)), 0.0  # all ranks have passed the barrier


def agreed(value: float) -> float:
    """The first process's value, in all of them."""
    return float(_gathered(value)[0])


def longest(value: float) -> float:
    """The largest of all processes' values."""
    return float(_gathered(value).max())


def _gathered(value: float) -> Floats:
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return np.array([value])
    gathered: Any = multihost_utils.process_allgather(np.float64(value))
    return np.asarray(gathered, np.float64)
