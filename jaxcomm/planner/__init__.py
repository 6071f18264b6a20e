"""Turns a profile into a plan. Each decision has a folder or file; decisions that need a solver use OR-Tools.

`make_plan` calls schedules/, halves, step/, rails/, transport, drops/, groups/ and lost_rails, and combines their
results. This package imports schedules, program, ffi, files, plan, profile and simulate, but never JAX. It imports
OR-Tools only when a decision needs it.
"""

from jaxcomm.planner.make_plan import plan
from jaxcomm.planner.schedules import candidates

__all__ = ["candidates", "plan"]
