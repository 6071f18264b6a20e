"""The plans that a run follows, and what plan="auto" has made of the run, for `jaxcomm.stats()`.

Written by communicator and auto_plan, read by statistics; imports nothing. `profile.run_file` says what is in a record.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

# What comes of something that plan="auto" finds.
Outcome = Literal["begun", "followed", "taken back", "no plan", "not measured", "not switched", "failed", "ended"]

# Of the file that `jaxcomm.stats().save(path)` writes.
FORMAT: Final = "jaxcomm-stats"
VERSION: Final = 1

BEGAN: Final = time.monotonic()  # from here the times of a run count: communicator imports this before any call
_MOST_EVENTS: Final = 256  # the last ones

_plans: list[dict[str, Any]] = []
_events: deque[dict[str, Any]] = deque(maxlen=_MOST_EVENTS)


def seconds() -> float:
    """Since the run began."""
    return time.monotonic() - BEGAN


def follow(plans: Iterable[Mapping[str, Any]]) -> None:
    """From now on all threads follow these plans, each a record of `jaxcomm.stats().plans` without its time."""
    _plans[:] = [{"since_s": seconds(), **plan} for plan in plans]


def record_event(said: str, outcome: Outcome, **about: Any) -> None:
    """Something has come of plan="auto": what the log says, and the rest of a record of `jaxcomm.stats().events`."""
    _events.append({"at_s": seconds(), "said": said, "outcome": outcome, **about})


def plans() -> list[dict[str, Any]]:
    """Those that are followed now."""
    return [*_plans]


def events() -> list[dict[str, Any]]:
    """The last ones, in order."""
    return [*_events]


def forget() -> None:
    """Forgets the events."""
    _events.clear()
