"""The metrics for OpenTelemetry: observable instruments that read `jaxcomm.stats()` whenever they are collected."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from jaxcomm import statistics
from jaxcomm.errors import load_extra
from jaxcomm.metrics.series import METRICS, Metric
from jaxcomm.statistics import Stats

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

_SHARED_S: Final = 0.5  # instruments that are collected within this time share one reading of the statistics


def instrument(meter_provider: MeterProvider | None = None) -> None:
    """Creates an observable instrument for each of this process's metrics. Call it once.

    Args:
      meter_provider: a provider of OpenTelemetry's SDK; None stands for the global provider.

    Raises:
      JaxcommError: the package opentelemetry-api is not installed.
    """
    api = load_extra("opentelemetry.metrics", "jaxcomm.metrics.instrument")
    meter = api.get_meter("jaxcomm", meter_provider=meter_provider)
    create = {"counter": meter.create_observable_counter, "gauge": meter.create_observable_gauge}
    read = _Reading()
    for metric in METRICS:
        callback = _observe(metric, read, api.Observation)
        create[metric.kind](metric.name, [callback], unit=metric.unit, description=metric.help)


class _Reading:
    """The statistics that instruments share, because an SDK calls each instrument's callback separately."""

    def __init__(self) -> None:
        self._at_s, self._stats = 0.0, Stats()

    def __call__(self) -> Stats:
        if (now := time.monotonic()) - self._at_s > _SHARED_S:
            self._at_s, self._stats = now, statistics.stats()
        return self._stats


def _observe(metric: Metric, read: _Reading, observation: Any) -> Callable[[Any], Iterator[Any]]:
    def observe(_options: Any) -> Iterator[Any]:
        for labels, value in metric.read(read()):
            yield observation(value, dict(labels))

    return observe
