"""Predicts times: of a schedule in closed form, of a run message by message, or of a plan over ranks, sizes and delays.

Pure numpy, no JAX. Imports schedules, program, profile and plan. Planner, report and cli import this package.
"""

from jaxcomm.simulate.between_hosts import BetweenHosts, timed_costs
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
from jaxcomm.simulate.executor_costs import Costs, LinkCosts, TermCosts, TimedCosts
from jaxcomm.simulate.forecast import Forecast, forecast, repetitions
from jaxcomm.simulate.incast import link_of
from jaxcomm.simulate.network import Network
from jaxcomm.simulate.ports import Ports, ports
from jaxcomm.simulate.simulation import Messages, Run, Simulation, run
from jaxcomm.simulate.sweep import SweepRow, sweep
from jaxcomm.simulate.tune import Tuned, best, tuned_hybrid, tuned_straggler

__all__ = [
    "PORTS",
    "BetweenHosts",
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
    "timed_costs",
    "tuned_hybrid",
    "tuned_straggler",
]
