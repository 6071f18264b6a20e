"""This process's statistics: metrics for Prometheus and OpenTelemetry, and scalars per step for metric writers.

`series` has the table of all metrics and reads their values from `jaxcomm.stats()`. `prometheus` and `opentelemetry`
export the table; each imports its library when it is called. This package may import `jaxcomm.statistics`.
"""

from jaxcomm.metrics.opentelemetry import instrument
from jaxcomm.metrics.prometheus import register
from jaxcomm.metrics.scalars import scalars

__all__ = ["instrument", "register", "scalars"]
