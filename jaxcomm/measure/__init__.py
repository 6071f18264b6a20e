"""Measuring what profiles hold: links, lost packets and late ranks, a step's gradients, what loss a training bears.

May be imported by auto_plan, cli and train; imports profile, program, what runs the collectives, and the calls between
processes.
"""

from jaxcomm.measure.by_xla import measure_by_xla
from jaxcomm.measure.devices import measure_devices
from jaxcomm.measure.gradients import measure_gradients
from jaxcomm.measure.processes import measure_processes

__all__ = ["measure_by_xla", "measure_devices", "measure_gradients", "measure_processes"]
