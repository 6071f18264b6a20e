"""Progress on standard error: bars for counted work, a clock for work that does not say how far it is."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

_TICK_S = 0.2


def bar(total: float, label: str) -> Any:
    """A bar that vanishes when it is closed, and that only a terminal shows."""
    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    return tqdm(total=total, desc=label, bar_format=form, leave=False, disable=None, file=sys.stderr)


@contextlib.contextmanager
def clock(label: str) -> Iterator[None]:
    """Shows on a terminal that work goes on, and for how long it has."""
    done = threading.Event()
    with tqdm(
        total=0, desc=label, bar_format="{desc} … {elapsed}", leave=False, disable=None, file=sys.stderr
    ) as shown:

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
