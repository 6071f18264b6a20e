"""Publishes this process's row in the job's key-value store, and reads the other processes' rows when asked."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Final

from jaxcomm import ffi
from jaxcomm.arrivals import rows
from jaxcomm.arrivals.rows import ArrivalsRow
from jaxcomm.distributed import store
from jaxcomm.environment import host_name
from jaxcomm.errors import JaxcommError

_ROWS: Final = "arrivals/rows"
_OVERDUE: Final = "arrivals/overdue"
_LONGEST_PERIOD_S: Final = 1.0
_STOP_S: Final = 2.0  # time limit for publishing the last row of an ending process


class Exchange:
    """A thread that talks to the store, so that no other thread waits if the store does not answer.

    The thread publishes a row every second, or every quarter of the deadline if this is shorter. It reads rows only
    when asked.
    """

    def __init__(self, process: int) -> None:
        self._process = process
        self._host = host_name()
        self._thread = threading.Thread(target=self._run, name="jaxcomm arrivals exchange", daemon=True)
        self._stopping = threading.Event()
        self._wake, self._answered = threading.Event(), threading.Event()
        self._is_asked = False
        self._announcement: str | None = None
        self._beat, self._next = 0, 0.0
        self.rows: dict[int, ArrivalsRow] = {}  # the rows that were read last, by process
        self.overdue: str | None = None  # the announcement that was read last; it may come from any process

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Publishes that this process has ended, and ends the thread."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(_STOP_S)

    def read(self, timeout_s: float) -> bool:
        """Updates `rows`. Returns False if the store has not answered in time."""
        self._answered.clear()
        self._is_asked = True
        self._wake.set()
        return self._answered.wait(timeout_s)

    def announce(self, text: str) -> None:
        """Publishes an announcement, which replaces the last announcement in the store."""
        self._announcement = text
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            # The store may have failed, or `jax.distributed` may have been shut down.
            with contextlib.suppress(JaxcommError):
                self._talk()
            period_s = min(_LONGEST_PERIOD_S, ffi.deadline() / 4)
            self._wake.wait(period_s)
            self._wake.clear()
        with contextlib.suppress(JaxcommError):
            self._publish(has_ended=True)

    def _talk(self) -> None:
        if time.monotonic() >= self._next:
            self._publish(has_ended=False)
        if (announcement := self._announcement) is not None:
            store.replace(_OVERDUE, announcement)
            self._announcement = None
        if self._is_asked:
            self._is_asked = False
            found = [rows.from_json(text) for text in store.find_all(_ROWS)]
            self.rows = {row.process: row for row in found}
            self._answered.set()
        self.overdue = store.find(_OVERDUE)

    def _publish(self, *, has_ended: bool) -> None:
        self._next = time.monotonic() + min(_LONGEST_PERIOD_S, ffi.deadline() / 4) * 0.9
        self._beat += 1
        row = rows.make(self._process, self._host, self._beat, has_ended=has_ended)
        store.replace(f"{_ROWS}/{self._process}", rows.to_json(row))
