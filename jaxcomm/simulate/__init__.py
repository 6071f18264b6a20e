"""Predicted times: of one schedule in closed form, of a run message by message, of a plan over sizes, delays and ranks.

Pure numpy, no JAX. Imports schedules and plan; imported by planner, report and cli.
"""

from jaxcomm.simulate.cost import PORTS, Delays, lower_bound, phases, releases, seconds, staggered
from jaxcomm.simulate.events import Messages, Run, run
from jaxcomm.simulate.sweep import Row, sweep
from jaxcomm.simulate.tune import Tuned, best, hybrid, straggler

__all__ = [
    "PORTS",
    "Delays",
    "Messages",
    "Row",
    "Run",
    "Tuned",
    "best",
    "hybrid",
    "lower_bound",
    "phases",
    "releases",
    "run",
    "seconds",
    "staggered",
    "straggler",
    "sweep",
]
