"""The metrics for Prometheus: a collector that reads `jaxcomm.stats()` whenever it is scraped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from jaxcomm import statistics
from jaxcomm.errors import load_extra
from jaxcomm.metrics.series import METRICS, Metric

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client import Metric as Family

_UNITS: Final = {"s": "_seconds", "By": "_bytes", "1": "_ratio"}


def register(registry: CollectorRegistry | None = None) -> None:
    """Adds this process's metrics to a registry of `prometheus_client`, which serves or pushes them.

        jaxcomm.metrics.register()
        prometheus_client.start_http_server(9400 + jax.process_index())

    Args:
      registry: the registry; None stands for `prometheus_client.REGISTRY`.

    Raises:
      JaxcommError: the package prometheus_client is not installed.
      ValueError: the registry has these metrics already.
    """
    client = load_extra("prometheus_client", "jaxcomm.metrics.register")
    load_extra("prometheus_client.core", "jaxcomm.metrics.register")
    (client.REGISTRY if registry is None else registry).register(_Collector(client.core))


def prometheus_name(metric: Metric) -> str:
    """The name under which Prometheus knows a metric, such as "jaxcomm_call_wait_seconds_total"."""
    name = metric.name.replace(".", "_") + _UNITS.get(metric.unit, "")
    return name + "_total" * (metric.kind == "counter")


class _Collector:
    def __init__(self, core: Any) -> None:
        self._families = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}

    def describe(self) -> Iterator[Family]:
        """Yields the metrics without values, so that registering does not read statistics."""
        for metric in METRICS:
            yield self._family(metric)

    def collect(self) -> Iterator[Family]:
        """Yields the metrics with their current values."""
        now = statistics.stats()
        for metric in METRICS:
            family = self._family(metric)
            for labels, value in metric.read(now):
                family.add_metric([labels[name] for name in metric.labels], value)
            yield family

    def _family(self, metric: Metric) -> Any:
        return self._families[metric.kind](prometheus_name(metric), metric.help, labels=metric.labels)
