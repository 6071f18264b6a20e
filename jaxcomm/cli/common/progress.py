"""Progress on standard error: bars for counted work, a clock for work of unknown length."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self, TextIO

_WIDTH: Final = 30
_APART_S: Final = 0.1  # minimum seconds between two updates of a bar
_TICK_S: Final = 0.2


class Bar:
    """A progress line on the terminal, removed at the end. If standard error is not a terminal, nothing is shown.

    Attributes:
      n: the amount of work that is done.
    """

    def __init__(self, total: float, label: str) -> None:
        """Creates a bar that is not shown yet.

        Args:
          total: the amount of work; with 0, only the elapsed time is shown.
          label: text before the bar.
        """
        self.n = 0.0
        self._total, self._label = total, label
        self._start, self._shown_at = time.monotonic(), -1.0
        self._is_shown = sys.stderr.isatty()

    def __enter__(self) -> Self:
        self.refresh()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._print("")

    def update(self, more: float = 1) -> None:
        """Adds `more` to the work that is done."""
        self.n += more
        if time.monotonic() - self._shown_at >= _APART_S:
            self.refresh()

    def set_description(self, label: str) -> None:
        """Replaces the label."""
        self._label = label
        self.refresh()

    def write(self, line: str, file: TextIO) -> None:
        """Prints a line above the bar."""
        self._print("")
        print(line, file=file)
        self.refresh()

    def refresh(self) -> None:
        """Shows the present state."""
        elapsed = round(time.monotonic() - self._start)
        clock = f"{elapsed // 60:02}:{elapsed % 60:02}"
        if not self._total:
            return self._print(f"{self._label} … {clock}")
        share = min(max(self.n / self._total, 0.0), 1.0)
        filled = "█" * round(share * _WIDTH)
        return self._print(f"{self._label}: {share:4.0%}|{filled:<{_WIDTH}}| {clock}")

    def _print(self, state: str) -> None:
        if self._is_shown:
            self._shown_at = time.monotonic()
            print(f"\r\x1b[K{state}", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def clock(label: str) -> Iterator[None]:
    """Shows the label and the elapsed time on a terminal while the block runs."""
    done = threading.Event()
    with Bar(0, label) as shown:

        def tick() -> None:
            while not done.wait(_TICK_S):
                shown.refresh()

        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            yield
        finally:
            done.set()
            ticker.join()
