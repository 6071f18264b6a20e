"""Measures the links of the job: at the start, and in the run."""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

_IN_THE_RUN: Final = 1 << 20  # measurements have numbers from here on


class MeasuredLinks(NamedTuple):
    """What a profile says of the links, and how long measuring them took."""

    links: dict[str, Any]
    took_s: float


def measure(pause: int | None = None) -> MeasuredLinks:
    """Measures the links; all processes do so at once.

    Args:
      pause: the number of the pause of the run in which they do; None at the start.

    Raises:
      JaxcommError: a process is gone, or has not come so far before the deadline.
    """
    from jaxcomm.measure import placement
    from jaxcomm.measure.processes import measure_links

    start = time.monotonic()
    found = measure_links(None if pause is None else _IN_THE_RUN + pause, with_incast=True)
    return MeasuredLinks(placement.describe(found), time.monotonic() - start)
