"""Measures values for profiles: links, lost packets, late ranks, a step's gradients, and drops that training tolerates.

The packages `auto_plan`, `cli` and `train` may import this package. It imports `profile`, `program`, the packages that
run collectives, and the calls between processes.
"""

from jaxcomm.measure.by_xla import measure_by_xla
from jaxcomm.measure.devices import measure_devices
from jaxcomm.measure.gradients import measure_gradients
from jaxcomm.measure.processes import measure_processes

__all__ = ["measure_by_xla", "measure_devices", "measure_gradients", "measure_processes"]
