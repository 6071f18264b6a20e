"""From a profile to a plan: one folder per decision, OR-Tools where a decision needs a solver.

`make_plan` asks schedules/, halves, step/, rails/, transport, drops/ and groups/ in turn, and joins their answers.
Imports schedules, program, ffi, files, plan, profile and simulate; never JAX. OR-Tools is imported
only when it is needed.
"""

from jaxcomm.planner.make_plan import plan

__all__ = ["plan"]
