"""Predicted times: of one schedule in closed form, of a run message by message, of a plan over sizes, delays and ranks.

Pure numpy, no JAX. Imports schedules, program, profile and plan; imported by planner, report and cli.
"""

from jaxcomm.simulate.closed_form import (
    PORTS,
    Delays,
    half_lower_bound,
    lower_bound,
    mean_seconds,
    phase_seconds,
    phases,
    releases,
    seconds,
    stage_seconds,
    stages,
    staggered,
)
from jaxcomm.simulate.critical_path import Parts, critical_path
from jaxcomm.simulate.events import Messages, Run, Simulation, run
from jaxcomm.simulate.executor_costs import Costs, LinkCosts, TermCosts, TimedCosts
from jaxcomm.simulate.forecast import Forecast, forecast, repetitions
from jaxcomm.simulate.incast import link_of
from jaxcomm.simulate.network import Network
from jaxcomm.simulate.ports import Ports, ports
from jaxcomm.simulate.sweep import SweepRow, sweep
from jaxcomm.simulate.tune import Tuned, best, tuned_hybrid, tuned_straggler

__all__ = [
    "PORTS",
    "Costs",
    "Delays",
    "Forecast",
    "LinkCosts",
    "Messages",
    "Network",
    "Parts",
    "Ports",
    "Run",
    "Simulation",
    "SweepRow",
    "TermCosts",
    "TimedCosts",
    "Tuned",
    "best",
    "critical_path",
    "forecast",
    "half_lower_bound",
    "link_of",
    "lower_bound",
    "mean_seconds",
    "phase_seconds",
    "phases",
    "ports",
    "releases",
    "repetitions",
    "run",
    "seconds",
    "stage_seconds",
    "stages",
    "staggered",
    "sweep",
    "tuned_hybrid",
    "tuned_straggler",
]
