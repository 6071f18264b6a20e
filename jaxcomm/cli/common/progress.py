"""Progress on standard error: bars for counted work, a clock for work of unknown length.

If standard error is not a terminal, work that takes more than two seconds prints two lines: one after two seconds, and
one with its duration at the end. In a job only the first process prints, and with `--json` nothing is printed.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self, TextIO

from jaxcomm.distributed.launch.job import is_first_process

_WIDTH: Final = 30
_APART_S: Final = 0.1  # minimum seconds between two updates of a bar
_TICK_S: Final = 0.2
_LONG_S: Final = 2.0  # work that takes longer prints lines

_are_lines_shown = True


@contextlib.contextmanager
def lines(shown: bool) -> Iterator[None]:
    """Sets whether work in this block prints lines if standard error is not a terminal."""
    global _are_lines_shown
    before, _are_lines_shown = _are_lines_shown, shown
    try:
        yield
    finally:
        _are_lines_shown = before


class Bar:
    """A progress line on a terminal, removed at the end. Without a terminal, prints lines as the module's text says.

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
        self._total, self._label, self._work = total, label, label
        self._start, self._shown_at = time.monotonic(), -1.0
        self._is_shown = sys.stderr.isatty()
        self._line: threading.Timer | None = None
        if not self._is_shown and _are_lines_shown and is_first_process():
            stream = sys.stderr
            self._line = threading.Timer(_LONG_S, lambda: print(f"{label} …", file=stream, flush=True))
            self._line.daemon = True

    def __enter__(self) -> Self:
        self.refresh()
        if self._line:
            self._line.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._print("")
        if self._line:
            self._line.cancel()
            self._line.join()
            seconds = time.monotonic() - self._start
            if seconds > _LONG_S and error is None:
                print(f"{self._work}: {seconds:.1f} s", file=sys.stderr, flush=True)

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
    """Shows the label and the elapsed time while the block runs."""
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
