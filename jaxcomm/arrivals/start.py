"""Starts to record arrivals in this process, and adds the records to `jaxcomm.ffi`."""

from __future__ import annotations

import functools
import threading
from typing import Any

import jax

from jaxcomm import ffi, jax_compat
from jaxcomm.arrivals import records
from jaxcomm.arrivals.exchange import Exchange
from jaxcomm.arrivals.totals import Totals
from jaxcomm.arrivals.watcher import Watcher
from jaxcomm.distributed import forks
from jaxcomm.environment import EXIT_AT_DEADLINE, is_on

_READ_S = 0.5  # time limit for the store's answer


@functools.cache
def start() -> None:
    """Starts the threads of this process, once.

    Raises:
      JaxcommError: JAXCOMM_EXIT_AT_DEADLINE is neither on nor off.
    """
    is_on(EXIT_AT_DEADLINE)  # checks the value now instead of at the deadline
    process = jax.process_index()
    exchange = Exchange(process) if jax_compat.spans_processes() else None
    watcher = Watcher(process, exchange)
    ffi.add_backend(_RecordedCalls(process, exchange, watcher))
    for thread in (exchange, watcher):
        if thread is not None:
            thread.start()
            forks.run_at_exit(thread.stop)


class _RecordedCalls:
    """The recorded calls, as a back end of `jaxcomm.ffi`."""

    def __init__(self, process: int, exchange: Exchange | None, watcher: Watcher) -> None:
        self._process, self._exchange, self._watcher = process, exchange, watcher
        self._totals = Totals(process, watcher.failures)
        self._lock = threading.Lock()  # guards `_totals`

    def register_program(self, name: str, data: bytes) -> None:
        """Does nothing, because XLA runs these calls, not the core."""

    def set_deadline(self, seconds: float) -> None:
        """Does nothing, because the threads read the deadline whenever they need it."""

    def sites(self) -> list[dict[str, Any]]:
        """The records of call sites."""
        if self._exchange:
            self._exchange.read(_READ_S)
        others = self._exchange.rows if self._exchange else {}
        with self._lock:
            return self._totals.update(
                records.read(), {process: row.sites for process, row in others.items() if process != self._process}
            )

    def reset_stats(self) -> None:
        """Forgets the records of call sites."""
        with self._lock:
            self._totals.reset(records.read(most_calls=0))

    def calls(self) -> dict[str, list[dict[str, Any]]]:
        """The calls that were open at the deadline, and the latest call of each device."""
        return self._watcher.calls()
