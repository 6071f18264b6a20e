"""Measures the links of the job, at the start and during the run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax


class MeasuredLinks(NamedTuple):
    """The fields of a profile that describe the links, and how many seconds the measurement took."""

    links: dict[str, Any]
    took_s: float


def measure(devices: Sequence[jax.Device], measurement: int | None = None) -> MeasuredLinks:
    """Measures the links between these devices; all processes of the devices call this together.

    Args:
      devices: devices of several processes.
      measurement: the number of this measurement; None at the start.

    Raises:
      JaxcommError: a process has ended, or does not arrive before the deadline.
    """
    from jaxcomm.measure import placement
    from jaxcomm.measure.links import measure_links

    start = time.monotonic()
    found = measure_links(measurement, devices=devices, with_incast=True)
    return MeasuredLinks(placement.describe(found), time.monotonic() - start)
