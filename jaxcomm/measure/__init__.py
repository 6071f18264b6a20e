"""Measuring, by JAX, what profiles hold: links and late ranks, a step's gradients, what loss a training bears.

May be imported by cli; imports profile and what runs the collectives.
"""

from jaxcomm.measure.devices import measure_devices
from jaxcomm.measure.gradients import measure_gradients

__all__ = ["measure_devices", "measure_gradients"]
